//! Would catch: the commands to remove the role that installed the extension, if they fail, or take
//! anything from its successor or from those to whom it had granted something.

use leaf_id_tests::Server;

use super::page::Page;

#[test]
fn the_role_that_installed_it_can_be_removed() {
    let server = Server::start(&[("leaf_id.worker_id", "1")]);
    let mut session = server.session();
    session.run(
        "CREATE ROLE shop_owner LOGIN; CREATE ROLE new_owner LOGIN; CREATE ROLE app LOGIN;
         CREATE ROLE member LOGIN",
    );
    session.run("CREATE DATABASE shop OWNER shop_owner");
    server.connect_as("shop_owner", "shop").run(
        "CREATE EXTENSION leaf_id;
         SELECT leaf_tag_create('orders'), leaf_tag_grant('orders', 'app'), leaf_id.leaf_gapless_create('bills');
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_gapless_next TO app;
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim TO member;
         GRANT SELECT ON leaf_id.leaf_gapless TO app",
    );
    let blocks = Page::read("docs/operations.md").blocks();
    let block = blocks.iter().find(|block| {
        block
            .test()
            .is_some_and(|test| test.starts_with("installer::"))
    });
    let mut admin = server.session_in("shop");
    let rights = "SELECT DISTINCT format('%s %s %s', coalesce(nullif(a.grantee::regrole::text, 'shop_owner'), 'new_owner'), o.name,
             a.privilege_type)
         FROM (SELECT 'schema', nspacl FROM pg_namespace WHERE nspname = 'leaf_id'
             UNION ALL SELECT relname, relacl FROM pg_class WHERE relnamespace = 'leaf_id'::regnamespace
             UNION ALL SELECT attname, attacl FROM pg_attribute
                 WHERE attrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'leaf_id'::regnamespace)
             UNION ALL SELECT oid::regprocedure::text, proacl FROM pg_proc WHERE proname LIKE 'leaf%'
         ) o (name, acl) CROSS JOIN aclexplode(o.acl) a ORDER BY 1";
    let before: Vec<String> = admin.column(rights);
    // With psql, as a reader of the page would.
    let file = server.dir().join("remove.sql");
    std::fs::write(&file, &block.unwrap().text).unwrap();
    let file = file.to_str().unwrap();
    server.run(
        "psql",
        &["-X", "-v", "ON_ERROR_STOP=1", "-d", "shop", "-f", file],
    );
    assert_eq!(admin.column::<String>(rights), before);
    let mut app = server.connect_as("app", "shop");
    assert_eq!(app.next("orders"), 1);
    assert_eq!(
        app.value::<i64>("SELECT leaf_id.leaf_gapless_next('bills')"),
        1
    );
    server.connect_as("new_owner", "shop").run(
        "SELECT leaf_tag_create('more'), leaf_tag_grant('more', 'member');
         SELECT leaf_id.leaf_opaque_create('veiled'); SELECT leaf_id.leaf_gapless_drop('bills')",
    );
    server.run("pg_dump", &["-U", "new_owner", "shop"]);
}
