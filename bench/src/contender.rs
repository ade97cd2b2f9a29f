//! The contenders: what generates ids, and the SQL that calls it.

use leaf_id_tests::Session;
use plotters::style::RGBColor;

/// One way to get an id.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name in the report.
    pub label: String,
    /// The SQL expression.
    pub call: String,
    /// The call that does nothing with the same argument.
    pub idle: &'static str,
    /// Its color in all charts.
    pub color: RGBColor,
    /// Takes microseconds, so that fewer calls are enough.
    pub slow: bool,
}

/// Ids of a tag.
pub const SEGMENT: &str = "leaf_segment_next";
/// Ids that contain their time.
pub const SNOWFLAKE: &str = "leaf_snowflake_next";
/// A sequence with the default cache.
pub const CACHE_1: &str = "nextval, CACHE 1";
/// A sequence whose sessions cache as many values as one WAL record covers.
pub const CACHE_32: &str = "nextval, CACHE 32";
/// A sequence whose sessions cache many values.
pub const CACHE_1000: &str = "nextval, CACHE 1000";
/// PostgreSQL's random UUID.
pub const RANDOM_UUID: &str = "gen_random_uuid()";
/// PostgreSQL's UUID that starts with its time, since version 18.
pub const UUID_V7: &str = "uuidv7()";
/// The snowflake ids of pgEdge's extension.
pub const PGEDGE: &str = "pgEdge snowflake.nextval";
/// A column GENERATED ALWAYS AS IDENTITY.
pub const IDENTITY: &str = "identity column";
/// A column of type bigserial.
pub const SERIAL: &str = "serial (CACHE 1)";
/// The same, whose sequence was altered so that sessions cache many values.
pub const SERIAL_1000: &str = "serial, CACHE 1000";

/// The ceiling of snowflake ids: 4,096 in a millisecond, less the mean of the random start
/// below 100.
pub const SNOWFLAKES_PER_SECOND: f64 = (4096.0 - 49.5) * 1000.0;
/// Nanoseconds for each snowflake id at the ceiling.
pub const NS_PER_SNOWFLAKE: f64 = 1e9 / SNOWFLAKES_PER_SECOND;

/// The PL/pgSQL snowflake that many answers on the web repeat: a sequence, the clock and a
/// shard number.
const PASTED: &str = "
CREATE SEQUENCE pasted_snowflake_seq;
CREATE FUNCTION pasted_snowflake(OUT result bigint) LANGUAGE plpgsql AS $$
DECLARE
    our_epoch bigint := 1314220021721;
    seq_id bigint;
    now_millis bigint;
    shard_id int := 5;
BEGIN
    SELECT nextval('pasted_snowflake_seq') % 1024 INTO seq_id;
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000) INTO now_millis;
    result := (now_millis - our_epoch) << 23;
    result := result | (shard_id << 10);
    result := result | (seq_id);
END $$;";

/// An extension of somebody else's.
struct Extension {
    name: &'static str,
    /// SQL to run after CREATE EXTENSION.
    prepare: &'static str,
    call: &'static str,
}

const fn extension(name: &'static str, call: &'static str) -> Extension {
    Extension {
        name,
        prepare: "",
        call,
    }
}

const PGEDGE_EXTENSION: Extension = Extension {
    name: "snowflake",
    prepare: "CREATE SEQUENCE IF NOT EXISTS pgedge_seq; SET snowflake.node = 1",
    call: "snowflake.nextval('pgedge_seq')",
};

const EXTENSIONS: [Extension; 8] = [
    extension("uuid-ossp", "uuid_generate_v1mc()"),
    extension("uuid-ossp", "uuid_generate_v4()"),
    extension("pg_uuidv7", "uuid_generate_v7()"),
    extension("pgx_ulid", "gen_ulid()"),
    extension("ulid", "gen_ulid()"),
    extension("pg_idkit", "idkit_uuidv7_generate()"),
    extension("pg_idkit", "idkit_ulid_generate()"),
    PGEDGE_EXTENSION,
];

/// Why an extension takes no part.
enum Absent {
    /// The server does not have it.
    NotInstalled,
    /// It is there, but fails.
    Fails(String),
}

impl Extension {
    /// Creates it, and calls it once.
    fn create(&self, session: &mut Session) -> Result<(), Absent> {
        let Self {
            name,
            prepare,
            call,
        } = self;
        let available =
            format!("SELECT EXISTS (SELECT FROM pg_available_extensions WHERE name = '{name}')");
        if !session.value::<bool>(&available) {
            return Err(Absent::NotInstalled);
        }
        let create = format!("CREATE EXTENSION IF NOT EXISTS \"{name}\"; {prepare}");
        session
            .try_run(&create)
            .and_then(|()| session.try_run(&format!("SELECT {call}")))
            .map_err(|failure| Absent::Fails(failure.message))
    }
}

/// The contender's color in all charts; those without one of their own share a gray.
#[must_use]
pub fn color(label: &str) -> RGBColor {
    match label {
        SEGMENT => RGBColor(0, 114, 178),
        SNOWFLAKE => RGBColor(0, 158, 115),
        CACHE_1 | SERIAL => RGBColor(213, 94, 0),
        CACHE_32 => RGBColor(204, 121, 167),
        CACHE_1000 | SERIAL_1000 => RGBColor(184, 134, 11),
        IDENTITY => RGBColor(148, 52, 110),
        RANDOM_UUID => RGBColor(110, 110, 110),
        _ => RGBColor(150, 150, 150),
    }
}

impl Contender {
    /// A contender that takes well under a microsecond, or has a color of its own.
    #[must_use]
    pub fn new(label: &str, call: &str) -> Self {
        let idle = if call.ends_with("()") {
            "noop()"
        } else {
            "noop('bench')"
        };
        Self {
            label: label.into(),
            call: call.into(),
            idle,
            color: color(label),
            slow: false,
        }
    }

    fn slow(label: &str, call: &str) -> Self {
        Self {
            slow: true,
            ..Self::new(label, call)
        }
    }

    /// Creates the tag `bench` and fresh sequences in this session's database, and returns
    /// what PostgreSQL and leaf_id offer.
    pub fn usual(session: &mut Session) -> Vec<Self> {
        session.run(
            "SELECT leaf_tag_create('bench');
             CREATE SEQUENCE cache_1;
             CREATE SEQUENCE cache_32 CACHE 32;
             CREATE SEQUENCE cache_1000 CACHE 1000",
        );
        vec![
            Self::new(SEGMENT, "leaf_segment_next('bench')"),
            Self::new(SNOWFLAKE, "leaf_snowflake_next()"),
            Self::new(CACHE_1, "nextval('cache_1')"),
            Self::new(CACHE_32, "nextval('cache_32')"),
            Self::new(CACHE_1000, "nextval('cache_1000')"),
            Self::new(RANDOM_UUID, RANDOM_UUID),
        ]
    }

    /// What else this server offers: newer functions of PostgreSQL, PL/pgSQL from the web,
    /// other extensions; and the failures of those that are there but do not work.
    pub fn others(session: &mut Session) -> (Vec<Self>, Vec<String>) {
        session.run(PASTED);
        let mut found = vec![Self::slow("PL/pgSQL snowflake", "pasted_snowflake()")];
        let mut failures = Vec::new();
        found.extend(Self::uuid_v7(session));
        for extension in EXTENSIONS {
            let (name, call) = (extension.name, extension.call);
            match extension.create(session) {
                Ok(()) => found.push(Self::slow(&format!("{name}: {call}"), call)),
                Err(Absent::NotInstalled) => {}
                Err(Absent::Fails(why)) => failures.push(format!("{name}: {why}.")),
            }
        }
        (found, failures)
    }

    fn uuid_v7(session: &mut Session) -> Option<Self> {
        (session.major() >= 18).then(|| Self::new(UUID_V7, UUID_V7))
    }

    /// The two others that ids with their time in them compete with; or the name of one, and why
    /// this server does not have it.
    pub fn with_time(session: &mut Session) -> [Result<Self, (&'static str, String)>; 2] {
        let pgedge = PGEDGE_EXTENSION.create(session);
        [
            Self::uuid_v7(session).ok_or((UUID_V7, "since PostgreSQL 18".into())),
            match pgedge {
                Ok(()) => Ok(Self::new(PGEDGE, PGEDGE_EXTENSION.call)),
                Err(Absent::NotInstalled) => Err((PGEDGE, "not installed".into())),
                Err(Absent::Fails(why)) => Err((PGEDGE, why)),
            },
        ]
    }
}

/// Several of them, by name.
#[must_use]
pub fn only<'a>(contenders: &'a [Contender], labels: &[&str]) -> Vec<&'a Contender> {
    contenders
        .iter()
        .filter(|contender| labels.contains(&contender.label.as_str()))
        .collect()
}
