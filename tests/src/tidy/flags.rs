//! Libraries name settings; only the command line knows flags.

use super::source::all_sources;

/// Crates that define a command line.
const COMMAND_LINES: [&str; 3] = ["bench", "cli", "tests"];

#[test]
fn no_library_names_a_command_line_flag() {
    let mut found = String::new();
    for source in all_sources() {
        if !source.is_production() || COMMAND_LINES.contains(&source.crate_folder()) {
            continue;
        }
        for token in source.tokens().iter().filter(|token| token.is_literal) {
            if names_a_flag(&token.text) {
                found += &format!("{}:{}: {}\n", source.path, token.line, token.text);
            }
        }
    }
    assert!(found.is_empty(), "name the setting, the command line maps it to its flag:\n{found}");
}

/// Returns whether a string has two dashes and a letter where a word begins.
fn names_a_flag(literal: &str) -> bool {
    let is_text =
        literal.starts_with('"') || literal.starts_with("r\"") || literal.starts_with("r#");
    let flag = |at: usize| {
        let before = literal[..at].chars().next_back();
        let begins =
            before.is_none_or(|c| c.is_whitespace() || matches!(c, '"' | '`' | '(' | '\''));
        begins && literal[at + 2..].starts_with(|c: char| c.is_ascii_lowercase())
    };
    is_text && literal.match_indices("--").any(|(at, _)| flag(at))
}
