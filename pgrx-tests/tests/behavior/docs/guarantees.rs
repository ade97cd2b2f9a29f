//! Would catch: an invariant without a row in docs/guarantees.md, or that the README does not
//! promise, and an assumption that no one can check of a kind that the README's limits do not name.

use super::page::Page;

/// Rows of the table, by cell: promise, assumption, who notices if it is false.
fn rows() -> Vec<Vec<String>> {
    Page::read("docs/guarantees.md").table("Promises and assumptions")
}

/// Prose below a heading of the README, on one line and in lower case.
fn section(heading: &str) -> String {
    let page = Page::read("README.md");
    let lines = page.prose().into_iter().map(|(_, line)| line);
    let below = lines.skip_while(|line| *line != heading).skip(1);
    let section = below.take_while(|line| !line.starts_with('#'));
    let words: Vec<_> = section.flat_map(str::split_whitespace).collect();
    words.join(" ").to_lowercase()
}

/// Phrases in italics.
fn italics(cell: &str) -> Vec<String> {
    let plain = cell.replace("**", "");
    let phrases = plain.split('*').skip(1).step_by(2);
    phrases.map(str::to_lowercase).collect()
}

/// The problem with a row, if any. A row whose last cell says "no one" has words in italics, each
/// of which is in the limits.
fn problem(row: &[String], limits: &str) -> Option<String> {
    let [promise, assumption, notices] = row else {
        return Some(format!("{} cells: {row:?}", row.len()));
    };
    if assumption.is_empty() || notices.is_empty() {
        return Some(format!("an empty cell: {row:?}"));
    }
    if assumption.starts_with("none") != (notices == "-") {
        return Some(format!("nothing is assumed, or who notices? {row:?}"));
    }
    if !notices.contains("no one") {
        return None;
    }
    let phrases: Vec<_> = [promise, assumption]
        .into_iter()
        .flat_map(|cell| italics(cell))
        .collect();
    if phrases.is_empty() {
        return Some(format!("no words in italics: {row:?}"));
    }
    let unnamed = phrases
        .into_iter()
        .find(|phrase| !limits.contains(phrase.as_str()))?;
    Some(format!("not in the README's limits: {unnamed}"))
}

#[test]
fn what_no_one_notices_is_in_the_limits() {
    let limits = section("### Limits");
    let rows = rows();
    assert!(rows.len() > 30, "{rows:#?}");
    let problems: Vec<_> = rows
        .iter()
        .filter_map(|row| problem(row, &limits))
        .collect();
    assert!(problems.is_empty(), "{problems:#?}");
}

#[test]
fn every_invariant_has_a_row() {
    let architecture = Page::read("ARCHITECTURE.md");
    let lines = architecture.prose().into_iter().map(|(_, line)| line);
    let names: Vec<_> = lines
        .filter_map(|line| line.strip_prefix("- **I"))
        .map(|rest| format!("**I{}** ", rest.split(' ').next().unwrap()))
        .collect();
    assert_eq!(names.len(), 10, "{names:?}");
    let rows = rows();
    let promised = section("## Guarantees");
    for name in names {
        assert!(rows.iter().any(|row| row[0].starts_with(&name)), "{name}");
        let cited = name.replace("**", "").trim().to_lowercase();
        assert!(promised.contains(&format!("({cited})")), "{cited}");
    }
}

#[test]
fn a_missing_limit_is_noticed() {
    let row = |cells: [&str; 3]| cells.map(str::to_string);
    let limits = "storage that lies repeats ids.";
    let good = row(["**I1** x", "no *storage that lies*", "no one"]);
    assert_eq!(problem(&good, limits), None);
    for bad in [
        row(["**I1** x", "no *other disk*", "no one"]),
        row(["**I1** x", "no disk", "otherwise no one"]),
        row(["**I1** x", "", "no one"]),
        row(["**I1** x", "none", "the log"]),
        row(["**I1** x", "no disk", "-"]),
    ] {
        assert!(problem(&bad, limits).is_some(), "{bad:?}");
    }
}
