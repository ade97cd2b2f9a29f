# ActiveRecord: a migration there and back, objects, many objects, schema.rb.

require_relative 'models'
require_relative 'migrations'
require 'stringio'

CreateOrders.new.migrate(:up)
CreateOrders.new.migrate(:down)
CreateOrders.new.migrate(:up)

Order.transaction do
  ids = (1..100).map { |i| Order.create!(item: "tea #{i}").id }
  many = Order.insert_all((1..500).map { |i| { item: "cake #{i}" } }, returning: %w[id])
  check(ids + many.rows.flatten)
end
check((1..10).map { Order.first.lines.create!.id })

schema = StringIO.new
ActiveRecord::SchemaDumper.dump(ActiveRecord::Base.connection, schema)
text = schema.string
raise "leaf_id's tables are in schema.rb:\n#{text}" if text.match?(/create_table "(leaf_|public\.leaf_)/)
raise "schema.rb has lost a default:\n#{text}" unless text.include?("leaf_segment_next('orders'::text)")
raise "schema.rb has lost the extension:\n#{text}" unless text.include?('enable_extension "leaf_id"')
File.write('dumped_schema.rb', text)
