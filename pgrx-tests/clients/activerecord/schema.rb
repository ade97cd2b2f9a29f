# Databases made from schema.rb and from structure.sql: leaf_sync makes the tags that they lack.

require_relative 'models'

Tasks = ActiveRecord::Tasks::PostgreSQLDatabaseTasks
config = ->(name) { ActiveRecord::DatabaseConfigurations::HashConfig.new('test', 'primary', CONFIG.merge(database: name)) }
Tasks.new(config.(ENV['PGDATABASE'])).structure_dump('structure.sql', nil)

last = Order.maximum(:id)
%w[schema structure].each do |kind|
  name = "#{ENV['PGDATABASE']}_#{kind}"
  ActiveRecord::Base.connection.execute("CREATE DATABASE #{name}")
  ActiveRecord::Base.establish_connection(CONFIG.merge(database: name))
  if kind == 'schema'
    load 'dumped_schema.rb'
  else
    Tasks.new(config.(name)).structure_load('structure.sql', nil)
  end
  # A row of the fixtures, with its id.
  Order.reset_column_information
  Order.create!(id: last, item: 'fixture')
  ActiveRecord::Base.connection.execute('SELECT * FROM leaf_sync()')
  ids = (1..20).map { |i| Order.create!(item: "after #{i}").id }
  raise "#{ids.first} is below #{last}" unless ids.first > last

  check(ids)
  ActiveRecord::Base.establish_connection(CONFIG)
end
