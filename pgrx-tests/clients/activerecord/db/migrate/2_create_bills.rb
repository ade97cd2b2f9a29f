class CreateBills < ActiveRecord::Migration[6.1]
  def change
    # Undone last: the tag goes after its table.
    reversible { |direction| direction.down { execute "SELECT leaf_tag_drop('bills')" } }
    create_table :bills do |t|
      t.references :invoice, foreign_key: true
    end
  end
end
