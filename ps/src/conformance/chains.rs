//! The scenarios of the suite for chains of checkpoints: each checkpoint holds only the changes
//! since the previous one.

use std::path::PathBuf;

use zillion_device::Files;
use zillion_rows::TableParts;

use super::scenarios::{Folder, fill, part_bytes, plan, refused, step};
use super::{MakeClient, specs};
use crate::client::TrainClient;
use crate::error::Error;

/// Runs the steps whose numbers are in the given range. These steps add, change and remove keys,
/// and add removed keys again.
fn steps(
    client: &mut dyn TrainClient,
    numbers: std::ops::RangeInclusive<u64>,
) -> Result<(), String> {
    for number in numbers {
        step(client, number, &plan(&[0, 1, 7, number % 9, 30 + number % 5, number / 2 * 40]))
            .map_err(|e| format!("step {number}: {e}"))?;
    }
    Ok(())
}

pub(super) fn a_chain_is_a_whole_checkpoint(make: &mut MakeClient<'_>) -> Result<(), String> {
    let fails = |e: Error| e.to_string();
    let files = Files::new();
    let lost = Folder::new()?;
    let mut client = make(specs());
    fill(client.as_mut())?;
    if client.checkpoint_mark().is_some() {
        return Err("there is a mark before `follow_checkpoints` was called".to_owned());
    }
    client.follow_checkpoints().map_err(fails)?;
    let mut below: Option<(PathBuf, Vec<TableParts>)> = None;
    let mut since = None;
    let mut folders = Vec::new();
    for round in 0..5u64 {
        let first = round * 10;
        steps(client.as_mut(), first + 1..=first + 4)?;
        if let Some(mark) = since.as_ref().filter(|_| round % 2 == 0) {
            // A checkpoint that is abandoned, and one that is complete and lost, change nothing for
            // the next one.
            let ticket = client.begin_changes(lost.path(), &files, mark).map_err(fails)?;
            refused("two checkpoints", client.begin_changes(lost.path(), &files, mark))?;
            steps(client.as_mut(), first + 5..=first + 6)?;
            client.abandon_checkpoint(ticket);
            let ticket = client.begin_changes(lost.path(), &files, mark).map_err(fails)?;
            drop(client.finish_checkpoint(ticket).map_err(fails)?);
        }
        steps(client.as_mut(), first + 7..=first + 8)?;
        let folder = Folder::new()?;
        let ticket = match &since {
            None => client.begin_checkpoint(folder.path(), &files),
            Some(mark) => client.begin_changes(folder.path(), &files, mark),
        };
        let ticket = ticket.map_err(fails)?;
        // The same moment is checkpointed by a client that goes on without checkpoints of changes.
        let whole = Folder::new()?;
        let mut other = make(specs());
        fill(other.as_mut())?;
        for past in 0..=round {
            steps(other.as_mut(), past * 10 + 1..=past * 10 + 4)?;
            if past % 2 == 0 && past > 0 {
                steps(other.as_mut(), past * 10 + 5..=past * 10 + 6)?;
            }
            steps(other.as_mut(), past * 10 + 7..=past * 10 + 8)?;
            if past < round {
                steps(other.as_mut(), past * 10 + 9..=past * 10 + 10)?;
            }
        }
        let expected = other.checkpoint(whole.path(), &files).map_err(fails)?;
        steps(client.as_mut(), first + 9..=first + 10)?;
        let mut parts = client.finish_checkpoint(ticket).map_err(fails)?;
        since = client.checkpoint_mark();
        if let Some((folder, below)) = &below {
            for (own, below) in parts.iter_mut().zip(below) {
                own.stand_on(folder, below);
            }
        }
        if parts.iter().any(|table| table.changes.is_some()) != (round > 0) {
            return Err(format!("checkpoint {round} holds {parts:?}"));
        }
        let mut restored = make(specs());
        restored.restore(folder.path(), &parts).map_err(fails)?;
        let again = Folder::new()?;
        let written = restored.checkpoint(again.path(), &files).map_err(fails)?;
        if written != expected
            || part_bytes(again.path(), &written)? != part_bytes(whole.path(), &expected)?
        {
            return Err(format!(
                "a chain of {round} checkpoints differs from the whole checkpoint of the same step"
            ));
        }
        below = Some((folder.path().to_owned(), parts));
        folders.push(folder);
    }
    Ok(())
}
