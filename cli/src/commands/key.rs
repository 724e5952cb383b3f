//! `zillion key`: makes keys that sign versions, and chooses the keys that readers trust.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use zillion_access::{KeyId, KeyKind, SigningKey, TrustedKeys};
use zillion_console::{durable_files, print_line};

use crate::args::{KeyCommand, KeyNewArgs, KeyTrustArgs};

pub(crate) fn run(command: &KeyCommand) -> Result<()> {
    match command {
        KeyCommand::New(args) => create(args),
        KeyCommand::Trust(args) => trust(args),
        KeyCommand::Show(args) => show(&args.file),
    }
}

fn create(args: &KeyNewArgs) -> Result<()> {
    let (private, public) = (with_ending(&args.out, ".key"), with_ending(&args.out, ".pub"));
    let key = SigningKey::create(&private, &public, &durable_files()?)?;
    print_line(&format!("key {}", key.id()));
    print_line(&format!("{}  signs; keep it secret", private.display()));
    print_line(&format!("{}  verifies; give it to `zillion key trust`", public.display()));
    Ok(())
}

/// Adds an ending to a file name, which may already contain dots.
fn with_ending(name: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = name.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn trust(args: &KeyTrustArgs) -> Result<()> {
    let id = TrustedKeys::add(&args.key, &args.keys, &durable_files()?)?;
    let number = TrustedKeys::load(&args.keys)?.ids().count();
    print_line(&format!("key {id} is trusted; {} has {number}", args.keys.display()));
    Ok(())
}

fn show(file: &Path) -> Result<()> {
    if file.is_dir() {
        TrustedKeys::load(file)?.ids().for_each(|id| print_line(&format!("{id}  public key")));
        return Ok(());
    }
    let (id, kind) = KeyId::load(file)?;
    let kind = match kind {
        KeyKind::Private => "private key",
        KeyKind::Public => "public key",
    };
    print_line(&format!("{id}  {kind}"));
    Ok(())
}
