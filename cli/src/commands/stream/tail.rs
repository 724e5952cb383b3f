//! `zillion stream tail`: the newest decisions of a run.

use std::collections::VecDeque;

use anyhow::Result;
use serde_json::json;
use zillion_console::{print_json, print_line};
use zillion_stream::{Decision, first_decision, read_decisions};

use super::find_streams;
use crate::args::StreamListArgs;

pub(super) fn run(args: &StreamListArgs) -> Result<()> {
    let folder = find_streams(&args.run)?.join("log");
    let mut newest: VecDeque<(u64, Decision)> = VecDeque::new();
    for entry in read_decisions(&folder, first_decision(&folder)?)? {
        newest.push_back(entry?);
        if newest.len() > args.last {
            newest.pop_front();
        }
    }
    for (number, decision) in newest {
        let decision = serde_json::to_value(&decision)?;
        match args.json {
            true => print_json(&json!({ "number": number, "decision": decision }))?,
            false => print_line(&format!("{number:>10}  {decision}")),
        }
    }
    Ok(())
}
