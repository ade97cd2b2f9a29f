//! Would catch: an example in the README, in docs/ or next to it that does not do what the text
//! says.
//!
//! Each page is run on a server of its own, like a reader would: block by block from the first to
//! the last, as the superuser, in database app.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use leaf_id_tests::Server;
use leaf_id_tests::programs::bin_dir;

use super::page::{Block, Mark, Page, root};

/// Numbers of blocks that are not just run, according to the pages; to notice every change.
const EXPECT: usize = 2;
const RUN_BY: usize = 25;
const NOT_RUN: usize = 3;

/// Appends settings to the configuration file, and restarts the server.
fn configure(server: &Server, settings: &str) {
    let path = server.data_dir().join("postgresql.conf");
    let mut conf = OpenOptions::new().append(true).open(path).unwrap();
    conf.write_all(settings.as_bytes()).unwrap();
    server.restart();
}

/// Follows README's "Install", but for the package, on a server that knows nothing of leaf_id.
fn install(server: &Server) {
    let readme = Page::read("README.md").blocks();
    let is_install =
        |block: &&Block| block.heading == "Install" && block.text.contains("psql <<'END'");
    let block = readme.iter().find(is_install).expect("the installation");
    let between = |begin: &str| {
        let (_, rest) = block.text.split_once(begin).unwrap();
        rest.split_once("\nEND").unwrap().0.to_owned() + "\n"
    };
    let output = psql(server, &between("psql <<'END'\n"));
    assert!(output.status.success(), "{}", said(&output));
    configure(server, &between("leaf_id.conf <<END\n"));
}

/// A server on which leaf_id was installed as README says, and then configured as a page says.
fn server_of(blocks: &[Block]) -> Server {
    let server = Server::start(&[("shared_preload_libraries", "")]);
    server.session().run("CREATE DATABASE app");
    install(&server);
    let page = blocks.iter().filter(|block| block.language == "ini");
    let settings: String = page.map(|block| &*block.text).collect();
    // For speed.
    configure(
        &server,
        &format!("{settings}\nleaf_id.timestamp_reservation = '100ms'\n"),
    );
    server
}

/// Output of a program run by a user of the server, with `input` as its standard input.
fn run(server: &Server, program: &str, args: &[&str], input: &str) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut child = server
        .program(program)
        .args(args)
        .env("PATH", format!("{}:{path}", bin_dir().display()))
        .env("PGDATABASE", "app")
        .env("PGTZ", "UTC")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program may exit at the first error without reading the rest.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn psql(server: &Server, sql: &str) -> Output {
    let args = ["-X", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"];
    run(server, "psql", &args, sql)
}

fn said(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

/// Removes psql's padding.
fn trimmed(text: &str) -> String {
    text.lines()
        .map(|line| line.trim_end().to_string() + "\n")
        .collect()
}

/// Runs a block of SQL and checks its result.
fn sql(server: &Server, block: &Block) -> Result<(), String> {
    for before in &block.before {
        let output = psql(server, before);
        if !output.status.success() {
            return Err(format!("{before}\n{}", said(&output)));
        }
    }
    let output = psql(server, &block.text);
    let said = said(&output);
    match &block.mark {
        Mark::Expect(state) if said.contains(&format!("ERROR:  {state}: ")) => {}
        Mark::Run if output.status.success() => {}
        _ => return Err(said),
    }
    match &block.output {
        Some(shown) if !trimmed(&said).contains(&trimmed(shown)) => {
            Err(format!("not what is shown:\n{said}"))
        }
        _ => Ok(()),
    }
}

/// Commands of a block, without comments and variable assignments.
fn commands(text: &str) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ");
    let lines = text.lines().map(|line| line.split(" #").next().unwrap());
    let words = lines.map(|line| {
        let words = line.split_whitespace().map(str::to_string);
        let is_setting = |word: &String| {
            word.split_once('=')
                .is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        };
        words.skip_while(is_setting).collect::<Vec<_>>()
    });
    words.filter(|words| !words.is_empty()).collect()
}

/// Sources of the tests, by path.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            let source = fs::read_to_string(&path).unwrap();
            found.push((path, source));
        }
    }
}

/// True if cargo finds a test by this name, any part of its path.
fn is_test(name: &str) -> bool {
    let folder = root().join("pgrx-tests/tests/behavior");
    let mut found = Vec::new();
    sources(&folder, &mut found);
    found.iter().any(|(path, source)| {
        let path = path.strip_prefix(&folder).unwrap().with_extension("");
        let modules: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
        let module = modules.join("::");
        let functions = source.split("#[test]").skip(1);
        let mut names = functions.filter_map(|rest| rest.split_once("fn ")?.1.split_once('('));
        names.any(|(function, _)| format!("{module}::{function}").contains(name))
    })
}

/// Would catch: a guarantee whose test was renamed.
#[test]
fn the_tests_of_the_guarantees_are_there() {
    let rows = Page::read("docs/guarantees.md").table("What holds, and how");
    assert_eq!(rows.len(), 10);
    let quoted = rows
        .iter()
        .flat_map(|row| row[3].split('`').skip(1).step_by(2));
    let (files, names): (Vec<_>, Vec<_>) = quoted
        .filter(|text| text.contains("::") || text.starts_with("pgrx-tests/"))
        .partition(|text| text.starts_with("pgrx-tests/"));
    assert!(names.len() >= rows.len(), "{names:?}");
    let there = |file: &&str| root().join(file).is_file();
    assert!(files.iter().all(there), "{files:?}");
    let missing: Vec<_> = names.iter().filter(|name| !is_test(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The problem with a developers' command, if it is one. These are not run, since they build, or
/// run this test.
fn developers(words: &[String]) -> Option<Result<(), String>> {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let check = |holds: bool, what: &str| if holds { Ok(()) } else { Err(what.to_string()) };
    let words: Vec<_> = words
        .iter()
        .map(|word| word.trim_matches(|c| "\"$()".contains(c)))
        .collect();
    let words = words.strip_prefix(&["eval"]).unwrap_or(&words);
    let arguments = words[1..].iter().filter(|word| !word.starts_with('-'));
    match words[0] {
        "make" => Some(
            arguments
                .filter(|word| !word.contains('='))
                .try_for_each(|target| {
                    let rule = format!("\n{target}: ## ");
                    check(makefile.contains(&rule), &format!("no target {target}"))
                }),
        ),
        "cargo" => {
            let mut found = words[1..].split(|word| *word == "--");
            let own = found.next().unwrap();
            let packages = own
                .windows(2)
                .filter(|pair| ["-p", "--package"].contains(&pair[0]));
            let mut packages = packages.map(|pair| pair[1]);
            let tests = found.next().unwrap_or_default();
            let mut tests = tests.iter().filter(|word| !word.starts_with('-'));
            Some(
                packages
                    .try_for_each(|package| {
                        let manifests = ["", "src/core/", "pgrx-tests/", "bench/"];
                        let named = format!("name = \"{package}\"\n");
                        let known = manifests.iter().any(|folder| {
                            let manifest = root().join(folder).join("Cargo.toml");
                            fs::read_to_string(manifest).unwrap().contains(&named)
                        });
                        check(known, &format!("no package {package}"))
                    })
                    .and_then(|()| {
                        tests.try_for_each(|name| check(is_test(name), &format!("no test {name}")))
                    }),
            )
        }
        script if script.starts_with("scripts/") => {
            Some(check(root().join(script).exists(), &format!("no {script}")))
        }
        _ => None,
    }
}

/// Runs shell commands if they are PostgreSQL's; checks others.
fn shell(server: &Server, block: &Block) -> Result<(), String> {
    let mut is_run = false;
    for words in commands(&block.text) {
        match developers(&words) {
            Some(result) => result?,
            None if bin_dir().join(&words[0]).exists() => is_run = true,
            None => return Err(format!("neither run nor looked at: {}", words[0])),
        }
    }
    if !is_run {
        return Ok(());
    }
    let output = run(server, "/bin/sh", &["-eux"], &block.text);
    if output.status.success() {
        Ok(())
    } else {
        Err(said(&output))
    }
}

/// Searches the file for the lines of a block.
fn excerpt(block: &Block, path: &str) -> Result<(), String> {
    let text = fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))?;
    let mut lines = text.lines().map(str::trim);
    let mut wanted = block.text.lines().map(str::trim);
    match wanted.find(|wanted| !wanted.is_empty() && !lines.any(|line| line == *wanted)) {
        None => Ok(()),
        Some(line) => Err(format!("not in {path}, or not in this order: {line}")),
    }
}

/// Runs the blocks of a page, and returns their number.
fn run_page(page: &Page) -> Result<usize, String> {
    let blocks = page.blocks();
    let server = server_of(&blocks);
    let mut count = 0;
    for block in &blocks {
        let result = match (&*block.language, &block.mark) {
            (_, Mark::From(path)) => excerpt(block, path),
            (_, Mark::RunBy(_) | Mark::NotRun(_)) | ("" | "text" | "ini", Mark::Run) => continue,
            ("sql", _) => sql(&server, block),
            ("sh", Mark::Run) => shell(&server, block),
            (language, _) => Err(format!("a block of {language:?}, and what to do with it?")),
        };
        result.map_err(|problem| format!("{}:{}: {problem}", page.name, block.line))?;
        count += 1;
    }
    Ok(count)
}

#[test]
fn every_example_runs() {
    let mut count = 0;
    let mut failed = Vec::new();
    for page in Page::all() {
        if page.blocks().is_empty() {
            continue;
        }
        match run_page(&page) {
            Ok(blocks) => count += blocks,
            Err(problem) => failed.push(problem),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(count >= 40, "only {count} blocks were run");
}

#[test]
fn no_more_blocks_than_these_are_not_simply_run() {
    let (mut expect, mut run_by, mut not_run) = (0, 0, 0);
    for page in Page::all() {
        for block in page.blocks() {
            match block.mark {
                Mark::Run | Mark::From(_) => {}
                Mark::Expect(state) => {
                    assert_eq!(state.len(), 5, "{}:{}", page.name, block.line);
                    expect += 1;
                }
                Mark::RunBy(script) if script.contains('/') => {
                    let source = fs::read_to_string(root().join(&script)).unwrap();
                    let page = page.name.rsplit('/').next().unwrap();
                    assert!(source.contains(page), "{script} does not run it");
                    run_by += 1;
                }
                Mark::RunBy(test) => {
                    assert!(is_test(&test) && test.contains("::"), "no test {test}");
                    run_by += 1;
                }
                Mark::NotRun(reason) => {
                    assert!(reason.len() > 5, "{}:{}", page.name, block.line);
                    not_run += 1;
                }
            }
        }
    }
    assert_eq!((expect, run_by, not_run), (EXPECT, RUN_BY, NOT_RUN));
}

#[test]
fn a_wrong_example_is_noticed() {
    let server = server_of(&[]);
    let page = |text: &str| Page {
        name: "x.md".into(),
        path: PathBuf::new(),
        text: text.into(),
    };
    let block = |text: &str| page(text).blocks().remove(0);
    sql(
        &server,
        &block("```sql\nSELECT 1 AS a;\n```\n```\n a\n---\n 1\n```\n"),
    )
    .unwrap();
    for wrong in [
        "```sql\nSELECT 1 AS a;\n```\n```\n a\n---\n 2\n```\n",
        "```sql\nSELECT 1/0; SELECT 1;\n```\n",
        "<!-- test: expect 22023 -->\n```sql\nSELECT 1/0;\n```\n",
        "<!-- test: expect 22012 -->\n```sql\nSELECT 1;\n```\n",
        "<!-- test: before SELECT 1/0 -->\n```sql\nSELECT 1;\n```\n",
    ] {
        sql(&server, &block(wrong)).unwrap_err();
    }
    let from = |text: &str| excerpt(&block(text), "pgrx-tests/clients/schema.sql");
    from("```sql\nCREATE TABLE orders (\n  item text NOT NULL\n```\n").unwrap();
    from("```sql\nitem text NOT NULL\nCREATE TABLE orders (\n```\n").unwrap_err();
    from("```sql\nCREATE TABLE\n```\n").unwrap_err();
    shell(
        &server,
        &block("```sh\npsql -c 'SELECT 1' # one\nPG_MAJOR=17 make test   # all\n```\n"),
    )
    .unwrap_err();
    for right in [
        "psql -c 'SELECT 1'",
        "PG_MAJOR=17 make test   # all",
        "eval \"$(make -s env)\"",
        "cargo test -p leaf_id_tests -- examples::every_example_runs --nocapture",
    ] {
        shell(&server, &block(&format!("```sh\n{right}\n```\n"))).unwrap();
    }
    for wrong in [
        "psql -c 'SELECT 1/0'",
        "make tests",
        "eval \"$(make -s environment)\"",
        "cargo test -p leaf_id_core -- no_such_test",
        "cargo test -p leaf_core",
        "rm -rf x",
    ] {
        shell(&server, &block(&format!("```sh\n{wrong}\n```\n"))).unwrap_err();
    }
}
