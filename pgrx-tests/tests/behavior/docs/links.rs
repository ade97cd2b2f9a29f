//! Would catch: a link in the README or docs/ to a missing file or heading.

use super::page::Page;

/// GitHub's anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let lower = heading.to_lowercase();
    lower
        .chars()
        .filter(kept)
        .collect::<String>()
        .replace(' ', "-")
}

/// Link targets in a line.
fn links(line: &str) -> Vec<&str> {
    let after = line.split("](").skip(1);
    after.map(|rest| rest.split(')').next().unwrap()).collect()
}

/// The problem with a link on a page, if any.
fn problem(page: &Page, link: &str) -> Option<String> {
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let path = match file {
        "" => page.path.clone(),
        file => page.path.parent().unwrap().join(file),
    };
    if !path.exists() {
        return Some(format!("no file {}", path.display()));
    }
    if heading.is_empty() {
        return None;
    }
    let target = Page::read(path.to_str().unwrap());
    let anchors: Vec<_> = target.headings().into_iter().map(anchor).collect();
    let count = anchors.iter().filter(|anchor| *anchor == heading).count();
    // The second of two equal headings has another anchor.
    (count != 1).then(|| format!("{count} headings"))
}

#[test]
fn every_link_leads_somewhere() {
    let mut checked = 0;
    let mut broken = Vec::new();
    for page in Page::all() {
        for (number, line) in page.prose() {
            for link in links(line) {
                if link.contains("://") {
                    continue;
                }
                checked += 1;
                if let Some(problem) = problem(&page, link) {
                    broken.push(format!("{}:{number}: {link}: {problem}", page.name));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(checked >= 50, "only {checked} links were found");
}

#[test]
fn a_broken_link_is_noticed() {
    let readme = Page::read("README.md");
    assert_eq!(links("[a](b.md#c) and ![d](e.svg)"), ["b.md#c", "e.svg"]);
    assert_eq!(
        anchor("The clock was set back, and \"it\" fails"),
        "the-clock-was-set-back-and-it-fails"
    );
    assert_eq!(problem(&readme, "docs/guide.md#orms"), None);
    for wrong in ["docs/nothing.md", "docs/guide.md#nothing", "#nothing"] {
        assert!(problem(&readme, wrong).is_some(), "{wrong}");
    }
}
