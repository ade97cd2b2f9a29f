# Migrations as Rails generates them, by its tasks, with the hook of packaging/hooks: forward, back, forward,
# and with nothing to do. Then a database for tests, from schema.rb and from structure.sql.

ENV.delete('DATABASE_URL')
require_relative 'models'
require_relative 'leaf_id'
require 'rake'

class Invoice < ActiveRecord::Base
end

class Bill < ActiveRecord::Base
end

tests = CONFIG.merge(database: "#{ENV['PGDATABASE']}_test")
tasks = ActiveRecord::Tasks::DatabaseTasks
tasks.env = 'development'
tasks.root = Dir.pwd
tasks.db_dir = 'db'
tasks.migrations_paths = ['db/migrate']
tasks.database_configuration = { development: CONFIG, test: tests }.deep_stringify_keys
ENV['VERBOSE'] = 'false'
task :environment
load 'active_record/railties/databases.rake'

# The default of each column; it has a new oid when it is set.
def defaults
  ActiveRecord::Base.connection.select_rows(
    'SELECT adrelid::regclass::text, oid, pg_get_expr(adbin, adrelid) FROM pg_attrdef ORDER BY 1, 2'
  )
end

def run(name, **variables)
  variables.each { |variable, value| ENV[variable.to_s] = value }
  Rake::Task.tasks.each(&:reenable)
  Rake::Task[name].invoke
  variables.each_key { |variable| ENV.delete(variable.to_s) }
  defaults
end

def check_adopted(found, *tables)
  tables.each do |table|
    default = found.find { |name, _| name == table }&.last
    raise "#{table}: #{default}" unless default&.start_with?('leaf_segment_next(')
  end
end

first = run('db:migrate', VERSION: '1')
check_adopted(first, 'invoices')
check((1..100).map { Invoice.create!.id })
second = run('db:migrate')
check_adopted(second, 'invoices', 'bills')
raise 'an adopted column was adopted again' unless (first - second).empty?
raise 'no ids' unless Bill.create!(invoice_id: Invoice.first.id).id.positive?

undone = run('db:rollback')
raise "after the rollback: #{undone}" unless undone == first

check_adopted(third = run('db:migrate'), 'invoices', 'bills')
raise 'there was something to do' unless run('db:migrate') == third
raise 'schema.rb would create a schema' unless ActiveRecord::Base.connection.schema_names.grep(/leaf/).empty?
raise 'schema.rb lacks a default' unless File.read('db/schema.rb').include?("leaf_segment_next('bills'::text)")

%i[ruby sql].each do |format|
  ActiveRecord::Base.schema_format = format
  run('db:_dump')
  run('db:test:prepare')
  ActiveRecord::Base.establish_connection(tests)
  check_adopted(defaults, 'invoices', 'bills')
  check((1..20).map { Invoice.create!.id })
  ActiveRecord::Base.establish_connection(CONFIG)
end
