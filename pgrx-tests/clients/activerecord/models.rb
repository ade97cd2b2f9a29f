# The connection, the models, and what the programs ask of ids.

require 'active_record'
require 'logger'

CONFIG = {
  adapter: 'postgresql', host: ENV['PGHOST'], port: ENV['PGPORT'], username: ENV['PGUSER'],
  password: ENV['PGPASSWORD'], database: ENV['PGDATABASE']
}.freeze
ActiveRecord::Base.establish_connection(CONFIG)
ActiveRecord::Migration.verbose = false

class Order < ActiveRecord::Base
  has_many :lines
end

class Line < ActiveRecord::Base
  belongs_to :order
end

# The ids of one column, in the order in which one session has taken them.
def check(ids)
  raise 'no id was returned' if ids.empty?
  raise "not integers: #{ids}" unless ids.all?(Integer)
  raise "not increasing: #{ids}" unless ids.each_cons(2).all? { |a, b| a < b }

  puts "checked #{ids.size} ids"
end
