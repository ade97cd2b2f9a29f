# A migration as Rails generates it: leaf_id.adopt_new_columns is on.

require_relative 'models'

class CreateInvoices < ActiveRecord::Migration[6.1]
  def change
    create_table :invoices do |t|
      t.integer :total
    end
  end
end

class Invoice < ActiveRecord::Base
end

CreateInvoices.new.migrate(:up)
default = ActiveRecord::Base.connection.columns(:invoices).find { |column| column.name == 'id' }.default_function
raise "the default is #{default}" unless default&.include?('leaf_segment_next')

check((1..100).map { Invoice.create!.id })
CreateInvoices.new.migrate(:down)
CreateInvoices.new.migrate(:up)
check((1..100).map { Invoice.create!.id })
