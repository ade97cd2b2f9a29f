# Rows with ids of their own, and then reset_pk_sequence!, which ActiveRecord calls after its fixtures.

require_relative 'models'

def insert_ahead
  last = Order.create!(item: 'before').id
  Order.insert_all([{ id: last + 5, item: 'fixture' }, { id: last + 50, item: 'fixture' }])
  Order.connection.reset_pk_sequence!('orders')
  last + 50
end

insert_ahead
begin
  10.times { Order.transaction(requires_new: true) { Order.create!(item: 'collides') } }
  raise 'nothing collides'
rescue ActiveRecord::RecordNotUnique
  Order.connection.execute('SELECT leaf_sync()')
end

module LeafSync
  def reset_pk_sequence!(*)
    super
    execute('SELECT leaf_sync()')
  end
end
ActiveRecord::ConnectionAdapters::PostgreSQLAdapter.prepend(LeafSync)

last = insert_ahead
ids = (1..20).map { Order.create!(item: 'after').id }
raise "#{ids} after #{last}" unless ids.first == last + 1

check(ids)
