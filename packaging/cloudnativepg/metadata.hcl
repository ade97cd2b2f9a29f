# For the repository of CloudNativePG's extension images, with a package of apt.postgresql.org. The
# licenses are those of what leaf_id.so contains, as THIRD-PARTY in the package lists it: each crate
# offers MIT.
metadata = {
  name                     = "leaf-id"
  sql_name                 = "leaf_id"
  image_name               = "leaf-id"
  licenses                 = ["PostgreSQL", "MIT"]
  shared_preload_libraries = ["leaf_id"]
  postgresql_parameters    = {}
  extension_control_path   = []
  dynamic_library_path     = []
  ld_library_path          = []
  bin_path                 = []
  env                      = {}
  auto_update_os_libs      = false
  required_extensions      = []
  create_extension         = true

  versions = {
    bookworm = {
      "18" = {
        package = "0.1.0-1.pgdg12+1"
        sql     = "0.1.0"
      }
    }
    trixie = {
      "18" = {
        package = "0.1.0-1.pgdg13+1"
        sql     = "0.1.0"
      }
    }
  }
}
