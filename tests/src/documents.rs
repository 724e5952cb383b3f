//! Tests of the links in the documents. Each link must lead to an existing file or heading.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::root;

/// Returns every Markdown file of the repository, sorted.
fn documents() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder can be listed") {
            let path = entry.expect("the folder can be listed").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let made = ["target", "runs", "data"].contains(&name);
            if path.is_dir() && !made && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Returns the targets of the links of a page. Ignores code blocks and links to other sites.
fn links(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut code = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        if code {
            continue;
        }
        for rest in line.split("](").skip(1) {
            let target = rest.split(')').next().unwrap_or_default();
            if !target.contains("://") && !target.is_empty() {
                found.push(target.to_owned());
            }
        }
    }
    found
}

/// Returns the anchors of a page's headings, in the form that GitHub and similar sites use.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let texts = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    texts
        .map(|text| {
            let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut broken = Vec::new();
    for document in documents() {
        let page = fs::read_to_string(&document).expect("documents are text");
        let folder = document.parent().unwrap_or(Path::new(""));
        for link in links(&page) {
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { document.clone() } else { folder.join(file) };
            let is_page = target.extension().is_some_and(|ending| ending == "md");
            let whole = match fs::read_to_string(&target) {
                Ok(page) if is_page && !anchor.is_empty() => anchors(&page).contains(anchor),
                _ => target.exists(),
            };
            if !whole {
                let place = document.strip_prefix(root()).unwrap_or(&document);
                broken.push(format!("{}: {link}", place.display()));
            }
        }
    }
    assert!(broken.is_empty(), "these links lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn the_map_of_the_architecture_is_short() {
    let page = fs::read_to_string(root().join("docs/ARCHITECTURE.md")).expect("a page is text");
    let words = page.split_whitespace().count();
    assert!(words <= 2500, "docs/ARCHITECTURE.md has {words} words; decisions go to docs/design/");
}
