//! Would catch: a CREATE FUNCTION in `sql/` that differs from its Rust function: in arguments or
//! result columns (a crash, or garbage), in STRICT where Rust cannot handle NULL (a panic), in
//! volatility or parallel safety; and one of the two without the other. `RawDatum` results have no
//! type to compare.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use leaf_id_tests::Server;
use syn::{Attribute, FnArg, GenericArgument, Item, ItemFn, PathArguments, ReturnType, Type};

/// Declaration of a function, in Rust or SQL.
#[derive(Debug, PartialEq, Eq)]
struct Declared {
    strict: bool,
    volatility: &'static str,
    parallel: &'static str,
    arguments: Vec<String>,
    /// Further arguments are read from fcinfo.
    more_arguments: bool,
    /// `None`: any type, as the datum is built in C's representation.
    result: Option<String>,
    set: bool,
    /// Names and types of the columns of a set-returning function.
    columns: Vec<String>,
}

/// Functions in `src/api` that PostgreSQL calls, by name.
fn in_rust() -> BTreeMap<String, Declared> {
    let api = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/api");
    let mut functions = BTreeMap::new();
    for entry in fs::read_dir(api).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        for item in syn::parse_file(&text).unwrap().items {
            if let Item::Fn(function) = item
                && let Some(attribute) = function.attrs.iter().find(|a| is_pg_extern(a))
            {
                let name = function.sig.ident.to_string();
                functions.insert(name, declared(&function, attribute));
            }
        }
    }
    functions
}

fn is_pg_extern(attribute: &Attribute) -> bool {
    attribute.path().is_ident("pg_extern")
}

fn declared(function: &ItemFn, attribute: &Attribute) -> Declared {
    let words = attribute.meta.require_list().unwrap().tokens.to_string();
    let has = |word: &str| words.split(',').any(|each| each.trim() == word);
    let mut types: Vec<_> = function
        .sig
        .inputs
        .iter()
        .map(|argument| match argument {
            FnArg::Typed(typed) => names(&typed.ty),
            FnArg::Receiver(_) => panic!("{}: a method", function.sig.ident),
        })
        .collect();
    let more_arguments = types
        .pop_if(|names| names[0] == "FunctionCallInfo")
        .is_some();
    let takes_null = types.iter().any(|names| names[0] == "Option");
    assert!(
        has("strict") != takes_null || types.is_empty(),
        "{}: strict where it takes a NULL, or not where it takes none",
        function.sig.ident
    );
    let result = match &function.sig.output {
        ReturnType::Default => vec!["void".to_owned()],
        ReturnType::Type(_, result) => names(result),
    };
    let set = matches!(&*result[0], "SetOfIterator" | "TableIterator");
    let scalar = result.last().filter(|_| result[0] != "TableIterator");
    let columns = match &function.sig.output {
        ReturnType::Type(_, row) if result[0] == "TableIterator" => columns(row),
        _ => Vec::new(),
    };
    Declared {
        strict: has("strict"),
        volatility: ["immutable", "stable"]
            .into_iter()
            .find(|word| has(word))
            .unwrap_or("volatile"),
        parallel: ["parallel_safe", "parallel_restricted"]
            .into_iter()
            .find(|word| has(word))
            .unwrap_or("parallel_unsafe"),
        arguments: types
            .iter()
            .map(|names| sql_type(names.last().unwrap()).unwrap())
            .collect(),
        more_arguments,
        result: scalar.and_then(|name| sql_type(name)),
        set,
        columns,
    }
}

/// Columns of a `TableIterator<'static, (name!(column, type), ..)>`.
fn columns(iterator: &Type) -> Vec<String> {
    let rows = inside(iterator);
    let Some(Type::Tuple(row)) = rows.first() else {
        panic!("rows are a tuple");
    };
    let column = |given: &Type| {
        let Type::Macro(named) = given else {
            panic!("a column is a name!()");
        };
        let tokens = named.mac.tokens.to_string();
        let (name, rust) = tokens.split_once(',').unwrap();
        let rust: Type = syn::parse_str(rust).unwrap();
        let sql = sql_type(names(&rust).last().unwrap()).unwrap();
        format!("{} {sql}", name.trim())
    };
    row.elems.iter().map(column).collect()
}

/// Types in the angle brackets of a type.
fn inside(given: &Type) -> Vec<&Type> {
    let Type::Path(path) = given else {
        return Vec::new();
    };
    match &path.path.segments.last().unwrap().arguments {
        PathArguments::AngleBracketed(inside) => (inside.args.iter())
            .filter_map(|argument| match argument {
                GenericArgument::Type(inner) => Some(inner),
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// Names of a type and of its type argument.
fn names(given: &Type) -> Vec<String> {
    match given {
        Type::Reference(to) => names(&to.elem),
        Type::Path(path) => {
            let mut all = vec![path.path.segments.last().unwrap().ident.to_string()];
            all.extend(inside(given).into_iter().flat_map(names));
            all
        }
        _ => vec!["record".into()],
    }
}

/// SQL type of a Rust type; `None` for a raw datum.
fn sql_type(rust: &str) -> Option<String> {
    let name = match rust {
        "i16" => "smallint",
        "i32" => "integer",
        "i64" => "bigint",
        "bool" => "boolean",
        "Oid" => "oid",
        "String" | "Text" | "str" => "text",
        "Name" => "name",
        "f64" => "double precision",
        "TimestampWithTimeZone" => "timestamp with time zone",
        "void" => "void",
        "RawDatum" => return None,
        other => panic!("what is {other} in SQL?"),
    };
    Some(name.into())
}

/// Declarations of the extension's C functions as created by the script, with the name of the
/// symbol, since several SQL functions may have the same name.
fn in_sql(server: &Server) -> BTreeMap<String, Declared> {
    let rows = server.session().query(
        "SELECT prosrc, proisstrict, provolatile::text, proparallel::text,
             ARRAY(SELECT format_type(t, NULL) FROM unnest(proargtypes) WITH ORDINALITY AS u (t, n) ORDER BY n),
             format_type(prorettype, NULL), proretset,
             ARRAY(SELECT format('%s %s', name, format_type(t, NULL))
                 FROM unnest(proallargtypes, proargmodes, proargnames) WITH ORDINALITY AS u (t, mode, name, n)
                 WHERE proretset AND mode IN ('o', 't') ORDER BY n)
         FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
             AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
         JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'leaf_id'
         WHERE prolang = (SELECT oid FROM pg_language WHERE lanname = 'c')",
        &[],
    );
    let declared = |row: &postgres::Row| Declared {
        strict: row.get(1),
        volatility: match row.get(2) {
            "i" => "immutable",
            "s" => "stable",
            _ => "volatile",
        },
        parallel: match row.get(3) {
            "s" => "parallel_safe",
            "r" => "parallel_restricted",
            _ => "parallel_unsafe",
        },
        arguments: row.get(4),
        more_arguments: false,
        // json is stored as text is.
        result: Some(row.get::<_, String>(5).replace("json", "text")),
        set: row.get(6),
        columns: row.get(7),
    };
    let symbol = |row: &postgres::Row| row.get::<_, String>(0).replace("_wrapper", "");
    rows.unwrap()
        .iter()
        .map(|row| (symbol(row), declared(row)))
        .collect()
}

#[test]
fn functions_are_what_the_script_says() {
    let server = Server::with_leaf_id(&[]);
    let (rust, mut sql) = (in_rust(), in_sql(&server));
    assert!(rust.len() > 30, "{rust:?}");
    for (name, mut declared) in rust {
        let Some(mut created) = sql.remove(&name) else {
            panic!("no CREATE FUNCTION for {name}");
        };
        if declared.more_arguments {
            created.arguments.truncate(declared.arguments.len());
            declared.more_arguments = false;
        }
        declared.result = declared.result.or_else(|| created.result.clone());
        assert_eq!(declared, created, "{name}: Rust, and SQL");
    }
    assert!(sql.is_empty(), "no Rust function behind {:?}", sql.keys());
}
