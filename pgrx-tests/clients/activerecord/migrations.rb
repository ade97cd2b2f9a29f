# A tag and its table in one migration.

class CreateOrders < ActiveRecord::Migration[6.1]
  def up
    enable_extension 'leaf_id'
    execute "SELECT leaf_tag_create('orders')"
    create_table :orders, id: :bigint, default: -> { "leaf_segment_next('orders')" } do |t|
      t.text :item, null: false
    end
    create_table :lines, id: :bigint, default: -> { 'leaf_snowflake_next()' } do |t|
      t.references :order, foreign_key: true
    end
  end

  def down
    drop_table :lines
    drop_table :orders
    execute "SELECT leaf_tag_drop('orders')"
    disable_extension 'leaf_id'
  end
end
