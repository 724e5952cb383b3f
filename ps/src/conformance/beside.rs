//! The scenarios of the suite for checkpoints that are written while steps go on.

use std::time::{Duration, Instant};

use zillion_device::Files;

use super::scenarios::{Folder, fill, part_bytes, plan, read, refused, step};
use super::{MakeClient, specs};
use crate::client::TrainClient;
use crate::error::Error;

/// The number of polls after which a checkpoint is either written or waits for other threads.
const MOST_POLLS: usize = 5000;

/// The time that other threads may take to write a small checkpoint.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the steps whose numbers are in the given range.
fn steps(
    client: &mut dyn TrainClient,
    numbers: std::ops::RangeInclusive<u64>,
) -> Result<(), String> {
    for number in numbers {
        step(client, number, &plan(&[number, 0, 1, 7, 30 + number % 5, number * 40]))
            .map_err(|e| format!("step {number}: {e}"))?;
    }
    Ok(())
}

pub(super) fn a_checkpoint_is_of_the_moment_that_it_began_in(
    make: &mut MakeClient<'_>,
) -> Result<(), String> {
    let fails = |e: Error| e.to_string();
    let files = Files::new();
    let (plain, end) = (Folder::new()?, Folder::new()?);
    let mut whole = make(specs());
    fill(whole.as_mut())?;
    steps(whole.as_mut(), 1..=12)?;
    let expected = whole.checkpoint(plain.path(), &files).map_err(fails)?;
    steps(whole.as_mut(), 13..=40)?;
    let ended = whole.checkpoint(end.path(), &files).map_err(fails)?;

    // The checkpoint is finished at once, or polled until it is written.
    for polls in [0, 3, MOST_POLLS] {
        let (folder, own_end, again) = (Folder::new()?, Folder::new()?, Folder::new()?);
        let mut client = make(specs());
        fill(client.as_mut())?;
        steps(client.as_mut(), 1..=12)?;
        let ticket = client.begin_checkpoint(folder.path(), &files).map_err(fails)?;
        steps(client.as_mut(), 13..=30)?;
        let began = Instant::now();
        let (mut polled, mut is_ready) = (0, false);
        while !is_ready
            && (polled < polls
                || polls == MOST_POLLS
                    && client.writes_beside_steps()
                    && began.elapsed() < PATIENCE)
        {
            is_ready = client.poll_checkpoint(&ticket).map_err(fails)?;
            polled += 1;
        }
        if polls == MOST_POLLS && client.writes_beside_steps() && !is_ready {
            return Err("polls do not bring a checkpoint to its end".to_owned());
        }
        steps(client.as_mut(), 31..=33)?;
        let parts = client.finish_checkpoint(ticket).map_err(fails)?;
        if parts != expected
            || part_bytes(folder.path(), &parts)? != part_bytes(plain.path(), &expected)?
        {
            return Err(
                "a checkpoint during training differs from the state at its beginning".to_owned()
            );
        }
        steps(client.as_mut(), 34..=40)?;
        let own = client.checkpoint(own_end.path(), &files).map_err(fails)?;
        if own != ended || part_bytes(own_end.path(), &own)? != part_bytes(end.path(), &ended)? {
            return Err(
                "a checkpoint during training has changed the result of training".to_owned()
            );
        }
        let mut resumed = make(specs());
        resumed.restore(folder.path(), &parts).map_err(fails)?;
        steps(resumed.as_mut(), 13..=40)?;
        if resumed.checkpoint(again.path(), &files).map_err(fails)? != ended {
            return Err(
                "a run from a checkpoint that was written during training differs".to_owned()
            );
        }
    }
    Ok(())
}

pub(super) fn one_checkpoint_at_a_time(make: &mut MakeClient<'_>) -> Result<(), String> {
    let fails = |e: Error| e.to_string();
    let files = Files::new();
    let folders = [Folder::new()?, Folder::new()?, Folder::new()?];
    let mut client = make(specs());
    fill(client.as_mut())?;
    steps(client.as_mut(), 1..=3)?;
    let ticket = client.begin_checkpoint(folders[0].path(), &files).map_err(fails)?;
    refused("a second checkpoint", client.begin_checkpoint(folders[1].path(), &files))?;
    refused("a plain checkpoint", client.checkpoint(folders[1].path(), &files))?;
    steps(client.as_mut(), 4..=5)?;
    let parts = client.finish_checkpoint(ticket).map_err(fails)?;

    // A restore abandons the open checkpoint, and its ticket is not valid for a later one.
    let ticket = client.begin_checkpoint(folders[1].path(), &files).map_err(fails)?;
    client.restore(folders[0].path(), &parts).map_err(fails)?;
    if client.poll_checkpoint(&ticket).is_ok() {
        return Err("a checkpoint that a restore abandoned can still be polled".to_owned());
    }
    let before = read(client.as_mut(), &plan(&[0, 1, 7]))?;
    let later = client.begin_checkpoint(folders[2].path(), &files).map_err(fails)?;
    if client.finish_checkpoint(ticket).is_ok() {
        return Err(
            "a checkpoint can be finished with the ticket of a different checkpoint".to_owned()
        );
    }
    client.abandon_checkpoint(later);
    if read(client.as_mut(), &plan(&[0, 1, 7]))? != before {
        return Err("a checkpoint that was abandoned has changed a row".to_owned());
    }
    let last = client.begin_checkpoint(folders[2].path(), &files).map_err(fails)?;
    if client.finish_checkpoint(last).map_err(fails)? != parts {
        return Err("the restored rows differ from the rows that were written".to_owned());
    }
    Ok(())
}
