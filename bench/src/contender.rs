//! Contenders: generators of ids, and their SQL.

use leaf_id_tests::Session;

/// Requirements of a contender.
enum Needs {
    Nothing,
    /// Minimum major version of PostgreSQL.
    Version(i32),
    /// An extension of another project.
    Extension(&'static str),
}

/// A way to get ids. `NAME` in its SQL stands for the tag or sequence.
pub struct Contender {
    /// Its name in the report.
    pub label: &'static str,
    /// Creates the tag or sequence, if any.
    setup: &'static str,
    /// Expression that takes an id; empty for an identity column.
    call: &'static str,
    /// Type of the ids.
    ids: &'static str,
    needs: Needs,
}

/// A tag.
pub const SEGMENT: Contender = Contender::new(
    "leaf_segment_next",
    "SELECT leaf_tag_create('NAME')",
    "leaf_segment_next('NAME')",
);
/// A tag with permuted numbers.
pub const OPAQUE: Contender = Contender::new(
    "opaque ids",
    "SELECT leaf_id.leaf_opaque_create('NAME')",
    "leaf_opaque_next('NAME')",
);
/// Time-ordered ids.
pub const SNOWFLAKE: Contender = Contender::new("leaf_snowflake_next", "", "leaf_snowflake_next()");
/// A sequence with the default cache, as of a serial column.
pub const SERIAL: Contender = Contender::new(
    "nextval, CACHE 1 (serial)",
    "CREATE SEQUENCE NAME",
    "nextval('NAME')",
);
/// A sequence whose sessions cache as many values as one WAL record covers.
pub const CACHE_32: Contender = Contender::new(
    "nextval, CACHE 32",
    "CREATE SEQUENCE NAME CACHE 32",
    "nextval('NAME')",
);
/// A sequence whose sessions cache many values.
pub const CACHE_1000: Contender = Contender::new(
    "nextval, CACHE 1000",
    "CREATE SEQUENCE NAME CACHE 1000",
    "nextval('NAME')",
);
/// The least that ids from shared memory can cost: an atomic addition, and nothing else.
pub const SHARED_ATOMIC: Contender = Contender::new(
    "one shared atomic addition",
    "",
    "atomic_add_shared('NAME')",
);
/// A column GENERATED ALWAYS AS IDENTITY.
pub const IDENTITY: Contender = Contender::new("identity column", "", "");
/// Random UUIDs.
pub const UUID: Contender = Contender {
    ids: "uuid",
    ..Contender::new("gen_random_uuid()", "", "gen_random_uuid()")
};
/// Time-ordered UUIDs.
pub const UUID_V7: Contender = Contender {
    ids: "uuid",
    needs: Needs::Version(18),
    ..Contender::new("uuidv7()", "", "uuidv7()")
};
/// The snowflake ids of pgEdge's extension.
pub const PGEDGE: Contender = Contender {
    needs: Needs::Extension("snowflake"),
    ..Contender::new(
        "pgEdge snowflake.nextval",
        "CREATE EXTENSION IF NOT EXISTS snowflake; CREATE SEQUENCE NAME",
        "snowflake.nextval('NAME')",
    )
};

impl Contender {
    const fn new(label: &'static str, setup: &'static str, call: &'static str) -> Self {
        Self {
            label,
            setup,
            call,
            ids: "bigint",
            needs: Needs::Nothing,
        }
    }

    /// Creates a tag or sequence of this name.
    pub fn create(&self, session: &mut Session, name: &str) {
        session.run(&self.setup.replace("NAME", name));
    }

    /// Expression that takes an id from it; empty for an identity column.
    pub fn call(&self, name: &str) -> String {
        self.call.replace("NAME", name)
    }

    /// Definition of a column `id` with ids from it.
    pub fn column(&self, name: &str) -> String {
        if self.call.is_empty() {
            return "id bigint GENERATED ALWAYS AS IDENTITY".into();
        }
        format!("id {} NOT NULL DEFAULT {}", self.ids, self.call(name))
    }

    /// Reason why this server does not support the contender, if any.
    fn absence(&self, session: &mut Session) -> Option<String> {
        match self.needs {
            Needs::Version(major) if session.major() < major => {
                Some(format!("needs PostgreSQL {major}"))
            }
            Needs::Extension(name) => {
                let sql =
                    format!("SELECT count(*) FROM pg_available_extensions WHERE name = '{name}'");
                (session.value::<i64>(&sql) == 0).then(|| "not installed".into())
            }
            _ => None,
        }
    }
}

/// Contenders available on this server, and a line with the reason for each missing one.
pub fn available(
    session: &mut Session,
    contenders: &[&'static Contender],
) -> (Vec<&'static Contender>, Vec<String>) {
    let mut present = Vec::new();
    let mut absent = Vec::new();
    for contender in contenders {
        match contender.absence(session) {
            None => present.push(*contender),
            Some(why) => absent.push(format!("{}: not measured, {why}", contender.label)),
        }
    }
    (present, absent)
}
