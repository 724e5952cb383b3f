//! The tokens of the Rust files of the workspace. Checks of code read tokens, so that they ignore
//! comments and strings.

use std::path::PathBuf;
use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::harness::{root, sources};

/// A token of a file, and the line on which the token begins. Groups are flattened: each bracket is
/// a token.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) text: String,
    pub(super) line: usize,
    pub(super) is_literal: bool,
}

/// A Rust file of the workspace.
pub(super) struct Source {
    /// The path of the file, relative to the root of the repository. Folders are separated by `/`.
    pub(super) path: String,
    pub(super) text: String,
}

impl Source {
    /// Returns the folder of the crate to which the file belongs.
    pub(super) fn crate_folder(&self) -> &str {
        self.path.split('/').next().unwrap_or_default()
    }

    /// Returns whether the file is production code. Such a file is in the `src` folder of a crate,
    /// and no part of its path is named `tests`, `tests.rs` or `testing.rs`.
    pub(super) fn is_production(&self) -> bool {
        let below: Vec<&str> = self.path.split('/').collect();
        let is_test = below.iter().any(|name| matches!(*name, "tests" | "tests.rs" | "testing.rs"));
        below.get(1) == Some(&"src") && !is_test
    }

    /// Returns the number of lines before the test module of the file.
    pub(super) fn production_lines(&self) -> usize {
        let end = self.text.find("#[cfg(test)]\nmod ").unwrap_or(self.text.len());
        self.text[..end].lines().count()
    }

    /// Returns the tokens of the file without attributes, doc comments and test modules.
    pub(super) fn tokens(&self) -> Vec<Token> {
        let stream = TokenStream::from_str(&self.text)
            .unwrap_or_else(|error| panic!("{}: {error}", self.path));
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        tokens
    }
}

/// Returns every Rust file of the workspace, sorted by path.
pub(super) fn all_sources() -> Vec<Source> {
    let relative = |path: PathBuf| {
        let below = path.strip_prefix(root()).expect("the file lies in the repository");
        below
            .iter()
            .map(|name| name.to_str().expect("a name in UTF-8"))
            .collect::<Vec<_>>()
            .join("/")
    };
    sources(root()).into_iter().map(|(path, text)| Source { path: relative(path), text }).collect()
}

/// Returns the folders of the crates in sorted order. The folder `tests` is not included.
pub(super) fn crate_folders() -> Vec<String> {
    let mut folders: Vec<String> = std::fs::read_dir(root())
        .expect("the repository can be listed")
        .map(|entry| entry.expect("the repository can be listed").path())
        .filter(|path| path.join("Cargo.toml").exists() && path.join("src").is_dir())
        .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
        .filter(|name| name != "tests")
        .collect();
    folders.sort();
    folders
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    let mut trees = stream.into_iter().peekable();
    let mut skips_next_module = false;
    while let Some(tree) = trees.next() {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                if let Some(TokenTree::Punct(inner)) = trees.peek()
                    && inner.as_char() == '!'
                {
                    trees.next();
                }
                if let Some(TokenTree::Group(attribute)) = trees.next() {
                    skips_next_module |= names_tests(&attribute.stream().to_string());
                }
            }
            TokenTree::Ident(word) if skips_next_module && word == "mod" => {
                trees.next();
                trees.next();
                skips_next_module = false;
            }
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                let end = group.span_close().end().line;
                tokens.push(Token { text: open.to_owned(), line, is_literal: false });
                flatten(group.stream(), tokens);
                tokens.push(Token { text: close.to_owned(), line: end, is_literal: false });
            }
            TokenTree::Literal(literal) => {
                skips_next_module = false;
                tokens.push(Token { text: literal.to_string(), line, is_literal: true });
            }
            TokenTree::Ident(word) => {
                skips_next_module &= word == "pub";
                tokens.push(Token { text: word.to_string(), line, is_literal: false });
            }
            TokenTree::Punct(punct) => {
                tokens.push(Token { text: punct.as_char().to_string(), line, is_literal: false });
            }
        }
    }
}

/// Returns whether an attribute is `cfg(test)` or begins with `cfg(all(test, …))`.
fn names_tests(attribute: &str) -> bool {
    let tight: String = attribute.chars().filter(|c| !c.is_whitespace()).collect();
    tight == "cfg(test)" || tight.starts_with("cfg(all(test,")
}
