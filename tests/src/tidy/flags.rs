//! Test that error texts of libraries name settings and never options of the command line.

use super::source::all_sources;

/// The crates that define a command line.
const COMMAND_LINES: [&str; 4] = ["bench", "cli", "console", "tests"];

/// The commands of other programs that a text may name with their options.
const OTHER_PROGRAMS: [&str; 1] = ["aws configure export-credentials"];

#[test]
fn no_library_names_a_command_line_flag() {
    let mut found = String::new();
    for source in all_sources() {
        if !source.is_production() || COMMAND_LINES.contains(&source.crate_folder()) {
            continue;
        }
        for token in source.tokens().iter().filter(|token| token.is_literal) {
            let is_others = OTHER_PROGRAMS.iter().any(|command| token.text.contains(command));
            if !is_others && names_a_flag(&token.text) {
                found += &format!("{}:{}: {}\n", source.path, token.line, token.text);
            }
        }
    }
    assert!(found.is_empty(), "name the setting, the command line maps it to its flag:\n{found}");
}

/// Returns whether a word of a string begins with two dashes and a letter.
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
