//! `zillion access`: makes the tokens of a server's callers.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;
use toml::value::Datetime;
use zillion_access::{Credentials, Identities, Role, hash_token, new_token};
use zillion_console::exit::usage_error;
use zillion_console::{print_json, print_line};

use crate::args::{AccessCommand, TokenArgs};

/// An access file with one token.
#[derive(Serialize)]
struct AccessFile<'a> {
    token: [Entry<'a>; 1],
}

#[derive(Serialize)]
struct Entry<'a> {
    name: &'a str,
    sha256: String,
    roles: BTreeSet<Role>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    models: BTreeSet<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Datetime>,
}

pub(crate) fn run(command: &AccessCommand) -> Result<()> {
    match command {
        AccessCommand::Token(args) => make_token(args),
    }
}

/// Makes a token. The entry alone goes to stdout, so that it can be appended to an access file
/// without the token.
fn make_token(args: &TokenArgs) -> Result<()> {
    let token = new_token()?;
    let entry = format_entry(args, &token)?;
    if args.json {
        return print_json(&json!({ "token": token, "entry": entry }));
    }
    eprintln!("token, which is not shown again: {token}");
    print_line(entry.trim_end());
    Ok(())
}

fn format_entry(args: &TokenArgs, token: &str) -> Result<String> {
    let entry = Entry {
        name: &args.name,
        sha256: hash_token(token),
        roles: args.roles.iter().copied().collect(),
        models: args.models.iter().map(String::as_str).collect(),
        expires: args.expires,
    };
    let text = toml::to_string(&AccessFile { token: [entry] })?;
    // A server must be able to read the entry, and must take the token now.
    let identities = match Identities::parse(&text, Path::new("access.toml")) {
        Ok(identities) => identities,
        Err(error) => return usage_error(error.to_string()),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match identities.identify(&Credentials::bearer(token), now) {
        Ok(_) => Ok(text),
        Err(_) => usage_error("--expires names a time in the past; name a time in the future"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn args(more: &[&str]) -> TokenArgs {
        let line = ["zillion", "access", "token"].iter().chain(more);
        match Args::try_parse_from(line).expect("the line parses").command {
            Command::Access(AccessCommand::Token(args)) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_entry_proves_the_name_roles_and_models_of_its_token() {
        let name = "a \"quoted\" name";
        let options = ["--roles", "score,read", "--models", "ctr,cvr"];
        let expires = ["--expires", "2999-01-01T00:00:00Z"];
        let args = args(&[&["--name", name][..], &options, &expires].concat());
        let text = format_entry(&args, "zln_token").expect("an entry");
        assert!(!text.contains("zln_token") && text.contains("expires"), "{text}");
        let identities = Identities::parse(&text, Path::new("access.toml")).expect("a file");
        let now = |year: u64| (year - 1970) * 31_556_952;
        let found = |token, now| identities.identify(&Credentials::bearer(token), now);
        let caller = found("zln_token", now(2030)).expect("the token is known");
        assert_eq!(caller.name, name);
        assert!(caller.check(Role::Read, Some("cvr")).is_ok());
        assert!(caller.check(Role::Read, Some("other")).is_err());
        assert!(caller.check(Role::Operate, None).is_err());
        assert!(found("zln_token", now(3000)).is_err());
        assert!(found("zln_another", now(2030)).is_err());
    }

    #[test]
    fn entries_that_a_server_would_refuse_are_usage_errors() {
        let refused = |more: &[&str]| {
            let args = args(&[&["--name", "a", "--roles", "score"][..], more].concat());
            format_entry(&args, "zln_token").expect_err("refused").to_string()
        };
        assert!(refused(&["--expires", "2020-01-01T00:00:00Z"]).contains("past"));
        assert!(refused(&["--expires", "2999-01-01"]).contains("zone"));
    }
}
