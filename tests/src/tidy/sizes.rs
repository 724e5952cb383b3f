//! Test of the sizes of files and functions.

use super::source::{Token, all_sources};

/// The maximum number of lines of a production file. Tests in the same file do not count.
const LARGEST_FILE: usize = 500;
/// The maximum number of lines of a function.
const LARGEST_FUNCTION: usize = 100;

/// The files that may be longer, each with a reason.
const LONG_FILES: [(&str, &str); 0] = [];

/// The functions that may be longer, each with a reason.
const LONG_FUNCTIONS: [(&str, &str, &str); 3] = [
    ("cli/src/metrics/trainer/tables.rs", "new", "a list with one entry a metric"),
    ("serving/src/metrics.rs", "new", "a list with one entry a metric"),
    ("serving/src/metrics/loading.rs", "new", "a list with one entry a metric"),
];

#[test]
fn files_are_within_the_limit() {
    let mut long = String::new();
    for source in all_sources().iter().filter(|source| source.is_production()) {
        let lines = source.production_lines();
        let excused = LONG_FILES.iter().any(|(path, _)| *path == source.path);
        if lines > LARGEST_FILE && !excused {
            long += &format!("{} has {lines} lines\n", source.path);
        }
        assert!(!excused || lines > LARGEST_FILE, "{} needs no exception", source.path);
    }
    assert!(long.is_empty(), "more than {LARGEST_FILE} lines, split them by idea:\n{long}");
}

#[test]
fn functions_are_within_the_limit() {
    let mut long = String::new();
    for source in all_sources().iter().filter(|source| source.is_production()) {
        for function in functions(&source.tokens()) {
            let excused = LONG_FUNCTIONS
                .iter()
                .any(|(path, name, _)| *path == source.path && *name == function.name);
            if function.lines > LARGEST_FUNCTION && !excused {
                long += &format!(
                    "{}:{}: `{}` has {} lines\n",
                    source.path, function.line, function.name, function.lines
                );
            }
        }
    }
    assert!(long.is_empty(), "more than {LARGEST_FUNCTION} lines, split them by idea:\n{long}");
}

/// A function with its place in the code and its length.
struct Function {
    name: String,
    line: usize,
    lines: usize,
}

/// Returns all functions with a body that the tokens define. Nested functions are included.
fn functions(tokens: &[Token]) -> Vec<Function> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let Some(name) = tokens.get(at + 1) else { break };
        let is_name = name.text.starts_with(|c: char| c.is_alphabetic() || c == '_');
        if token.text != "fn" || !is_name {
            continue;
        }
        if let Some(end) = body_end(&tokens[at..]) {
            found.push(Function {
                name: name.text.clone(),
                line: token.line,
                lines: end - token.line + 1,
            });
        }
    }
    found
}

/// Returns the line at which the body of a function ends, or `None` if the function has no body.
fn body_end(tokens: &[Token]) -> Option<usize> {
    let mut depth = 0usize;
    let mut in_body = false;
    for token in tokens {
        match token.text.as_str() {
            ";" if depth == 0 => return None,
            "{" if depth == 0 => {
                in_body = true;
                depth = 1;
            }
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.checked_sub(1)?;
                if in_body && depth == 0 {
                    return Some(token.line);
                }
            }
            _ => {}
        }
    }
    None
}
