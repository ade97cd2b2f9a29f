# Rails: moves each serial and identity column to a tag of leaf_id after db:migrate and db:prepare, and
# creates the tags of a database that is made from schema.rb or structure.sql, such as that of tests.
#
# Copy it to config/initializers. The role that migrates owns the tables, and needs SELECT, INSERT,
# UPDATE and DELETE on leaf_id.leaf_alloc, and USAGE on schema leaf_id WITH GRANT OPTION, as the role
# has that installed the extension. A column that cannot be moved keeps its sequence, and the output
# says why.

require 'active_record/connection_adapters/postgresql_adapter'

module LeafIdHook
  ADOPT = 'CALL leaf_adopt_all(current_schema())'.freeze

  def migrate(*, **)
    super.tap { LeafIdHook.execute(ADOPT) }
  end

  def load_schema(*)
    super.tap { LeafIdHook.execute('SELECT leaf_sync()', ADOPT) }
  end

  # The schema.rb of Rails 7.1 to 8.0 creates all schemas before the extensions, which then fail to.
  module Schemas
    def schema_names
      super - %w[leaf_id leaf_id_internal]
    end
  end

  def self.execute(*statements)
    ActiveRecord::Base.connection_pool.with_connection do |connection|
      next unless connection.adapter_name == 'PostgreSQL' && connection.extension_enabled?('leaf_id')

      # libpq prints notices to the standard error.
      level = connection.client_min_messages
      connection.client_min_messages = 'notice'
      statements.each { |statement| connection.execute(statement) }
      connection.client_min_messages = level
    end
  end
end

ActiveRecord::Tasks::DatabaseTasks.singleton_class.prepend(LeafIdHook)
ActiveRecord::ConnectionAdapters::PostgreSQLAdapter.prepend(LeafIdHook::Schemas)
