//! The scenarios of the suite. Each scenario checks one rule of the contract.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zillion_device::Files;
use zillion_embedding::Rates;
use zillion_feature::{FeatureKey, LookupPlan, RowBuffer, Step, TableId};
use zillion_rows::TableParts;
use zillion_rows::conformance::{self as rows, plan_of};

use super::{MakeClient, TABLES, key, specs};
use crate::client::{PullOptions, PushMode, Since, StepReport, TrainClient};
use crate::error::Error;
use crate::pulled::PulledRows;

/// A temporary folder, which is removed when this value is dropped.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Self, String> {
        // The address makes the name unique in the process, and the process number makes it unique
        // among processes.
        let marker = Box::new(0u8);
        let name = format!("zillion-conformance-{}-{:p}", std::process::id(), marker);
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |t| t.as_nanos());
        let path = std::env::temp_dir().join(format!("{name}-{nanos}"));
        std::fs::create_dir_all(&path)
            .map_err(|e| format!("a temporary folder cannot be created: {e}"))?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that is not removed stays in the folder for temporary files and does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn plan(ids: &[u64]) -> Arc<LookupPlan> {
    let keys: Vec<FeatureKey> = ids.iter().map(|&id| key(id)).collect();
    Arc::new(plan_of(&vec![keys; TABLES]))
}

fn vocabulary(ids: std::ops::Range<u64>) -> Vec<FeatureKey> {
    let mut keys: Vec<FeatureKey> = ids.map(key).collect();
    keys.sort_unstable();
    keys
}

/// Returns gradients for the rows of a plan. Every float of the gradients is 1.
fn ones(client: &dyn TrainClient, plan: &LookupPlan) -> RowBuffer {
    let mut rows = RowBuffer::default();
    let layouts = client.layouts();
    rows.reshape(plan.tables.iter().map(|t| (t.keys.len(), layouts[t.table.index()].stride)));
    rows.tables.iter_mut().for_each(|t| t.values.fill(1.0));
    rows
}

pub(super) fn fill(client: &mut dyn TrainClient) -> Result<(), String> {
    for table in [1, 2] {
        client.prefill(TableId(table), &vocabulary(0..20)).map_err(|e| e.to_string())?;
    }
    Ok(())
}

pub(super) fn step(
    client: &mut dyn TrainClient,
    number: u64,
    plan: &Arc<LookupPlan>,
) -> Result<(), Error> {
    client.begin_step(Step(number), Rates::default())?;
    client.pull(plan, PullOptions::default(), RowBuffer::default())?;
    let gradients = ones(client, plan);
    client.push(plan, gradients, PushMode::Apply)?;
    client.sweep().map(drop)
}

/// Returns an error if `answer` is not [`Error::Order`].
pub(super) fn refused<T>(what: &str, answer: Result<T, Error>) -> Result<(), String> {
    match answer {
        Err(Error::Order { .. }) => Ok(()),
        Err(other) => Err(format!("{what} is refused for another reason: {other}")),
        Ok(_) => Err(format!("{what} is accepted")),
    }
}

pub(super) fn read(
    client: &mut dyn TrainClient,
    plan: &LookupPlan,
) -> Result<Vec<Vec<f32>>, String> {
    let answer = client.lookup(plan, RowBuffer::default());
    let (rows, _) = answer.map_err(|e| e.to_string())?;
    Ok(rows.tables.into_iter().map(|t| t.values).collect())
}

pub(super) fn order_is_kept(make: &mut MakeClient<'_>) -> Result<(), String> {
    let mut client = make(specs());
    let client = client.as_mut();
    fill(client)?;
    let plan = plan(&[1, 2, 30]);
    let (files, folder) = (Files::new(), Folder::new()?);
    let ok = |what: &str, answer: Result<(), Error>| answer.map_err(|e| format!("{what}: {e}"));
    let gradients = ones(client, &plan);
    let before = read(client, &plan)?;

    refused(
        "a pull before a step",
        client.pull(&plan, PullOptions::default(), RowBuffer::default()),
    )?;
    refused("a push before a step", client.push(&plan, gradients.clone(), PushMode::Apply))?;
    refused("a norm before a step", client.grad_sq_norm())?;
    refused("an apply before a step", client.apply(1.0))?;
    refused("a sweep before a step", client.sweep())?;
    refused("a skip before a step", client.skip())?;

    ok("begin_step", client.begin_step(Step(1), Rates::default()))?;
    refused("a norm before a push", client.grad_sq_norm())?;
    refused("an apply before a push", client.apply(1.0))?;
    refused("a sweep before a push", client.sweep())?;
    ok("a step that begins again", client.begin_step(Step(1), Rates::default()))?;

    let staged = client.push(&plan, gradients.clone(), PushMode::Stage);
    ok("push", staged.map(drop))?;
    refused("a second push", client.push(&plan, gradients.clone(), PushMode::Stage))?;
    refused(
        "a pull after a push",
        client.pull(&plan, PullOptions::default(), RowBuffer::default()),
    )?;
    refused("a sweep of staged gradients", client.sweep())?;
    refused("a step with staged gradients", client.begin_step(Step(2), Rates::default()))?;
    refused("a lookup in the middle", client.lookup(&plan, RowBuffer::default()))?;
    refused("a checkpoint in the middle", client.checkpoint(folder.path(), &files))?;
    let begun = client.begin_checkpoint(folder.path(), &files);
    refused("a checkpoint that begins in the middle", begun)?;
    refused("a prefill in the middle", client.prefill(TableId(1), &[]))?;
    refused("a restore in the middle", client.restore(folder.path(), &[]))?;
    refused("tracking from the middle", client.track_changes(1))?;
    let layer = client.write_layer(Since::Base, folder.path(), &files);
    refused("a layer in the middle", layer)?;
    refused("an epoch that ends in the middle", client.end_dirty_epoch())?;
    ok("discard", client.discard())?;
    if read(client, &plan)? != before {
        return Err("a discarded step or a refused call has changed a row".to_owned());
    }

    ok("begin_step", client.begin_step(Step(1), Rates::default()))?;
    let pushed = client.push(&plan, gradients.clone(), PushMode::Apply);
    ok("push", pushed.map(drop))?;
    refused("a step before the sweep", client.begin_step(Step(2), Rates::default()))?;
    refused("a checkpoint before the sweep", client.checkpoint(folder.path(), &files))?;
    let layer = client.write_layer(Since::Base, folder.path(), &files);
    refused("a layer before the sweep", layer)?;
    refused("an epoch that ends before the sweep", client.end_dirty_epoch())?;
    refused("an apply of what was applied", client.apply(1.0))?;
    refused("a skip of what was applied", client.skip())?;
    refused("a discard of what was applied", client.discard())?;
    ok("sweep", client.sweep().map(drop))?;
    refused("a second sweep", client.sweep())?;
    refused("a push after the step", client.push(&plan, gradients, PushMode::Apply))?;
    if client.begin_step(Step(1), Rates::default()).is_ok() {
        return Err("a step can be applied twice".to_owned());
    }
    ok("begin_step", client.begin_step(Step(2), Rates::default()))
}

pub(super) fn bad_arguments_change_nothing(make: &mut MakeClient<'_>) -> Result<(), String> {
    let mut client = make(specs());
    let client = client.as_mut();
    fill(client)?;
    let plan = plan(&[1, 2, 30]);
    let before = read(client, &plan)?;
    let refuse = |what: &str, accepted: bool| {
        if accepted { Err(format!("{what} is accepted")) } else { Ok(()) }
    };
    refuse("step 0", client.begin_step(Step(0), Rates::default()).is_ok())?;
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let begun = client.begin_step(Step(1), Rates { scale });
        refuse(&format!("a rate of {scale}"), begun.is_ok())?;
    }
    client.begin_step(Step(1), Rates::default()).map_err(|e| e.to_string())?;
    let beyond = Arc::new(plan_of(&vec![Vec::new(); TABLES + 1]));
    let pulled = client.pull(&beyond, PullOptions::default(), RowBuffer::default());
    refuse("a plan for other tables", pulled.is_ok())?;
    let mut gradients = ones(client, &plan);
    gradients.tables[2].values.pop();
    for mode in [PushMode::Apply, PushMode::Stage] {
        let pushed = client.push(&plan, gradients.clone(), mode);
        refuse("gradients of another shape", pushed.is_ok())?;
    }
    let whole = ones(client, &plan);
    let staged = client.push(&plan, whole, PushMode::Stage);
    staged.map_err(|e| format!("a push after a refused one: {e}"))?;
    for scale in [-1.0, f32::NAN, f32::INFINITY] {
        refuse(&format!("a factor of {scale}"), client.apply(scale).is_ok())?;
    }
    client.discard().map_err(|e| e.to_string())?;
    refuse("a vocabulary for a dynamic table", client.prefill(TableId(0), &[key(1)]).is_ok())?;
    refuse("a vocabulary for no table", client.prefill(TableId(99), &[key(1)]).is_ok())?;
    let mut unsorted = vocabulary(0..30);
    unsorted.swap(3, 4);
    refuse("an unsorted vocabulary", client.prefill(TableId(1), &unsorted).is_ok())?;
    let twice = vec![key(5); 2];
    refuse("a vocabulary with duplicates", client.prefill(TableId(1), &twice).is_ok())?;
    if read(client, &plan)? != before {
        return Err("a refused argument has changed a row".to_owned());
    }
    Ok(())
}

pub(super) fn one_push_reports_what_it_did(make: &mut MakeClient<'_>) -> Result<(), String> {
    let mut client = make(specs());
    let client = client.as_mut();
    fill(client)?;
    // Ids 1 and 2 are in the vocabulary, 30 and 31 are not.
    let plan = plan(&[1, 2, 30, 31]);
    let mut report = StepReport::default();
    for (number, mode) in [(1, PushMode::Apply), (2, PushMode::Stage)] {
        client.begin_step(Step(number), Rates::default()).map_err(|e| e.to_string())?;
        let mut gradients = ones(client, &plan);
        let position = plan.tables[0].keys.iter().position(|&k| k == key(30)).ok_or("no key 30")?;
        let stride = gradients.tables[0].stride;
        gradients.tables[0].values[position * stride] = f32::NAN;
        client.push(&plan, gradients, mode).map_err(|e| e.to_string())?;
        let answer = match mode {
            PushMode::Apply => client.sweep(),
            PushMode::Stage => client.apply(1.0),
        };
        report = answer.map_err(|e| e.to_string())?;
        let wanted = StepReport {
            // The gradient that is not finite is dropped, and its key gets a row. The last table
            // admits keys at their second occurrence.
            pushed: 3 + 2 + 2 + if number == 1 { 0 } else { 4 },
            created: 4,
            waiting: if number == 1 { 4 } else { 0 },
            refused: 4,
            refused_full: 0,
            nonfinite: 1,
            evicted: 0,
        };
        if report != wanted {
            return Err(format!("{mode:?} reports {report:?} instead of {wanted:?}"));
        }
    }
    let statistics = client.stats().map_err(|e| e.to_string())?;
    let rows: Vec<u64> = statistics.iter().map(|t| t.rows).collect();
    if rows != [4, 20, 20, 4] {
        return Err(format!("{rows:?} rows after {report:?}"));
    }
    match statistics.iter().find(|t| t.payload_bytes == 0 || t.index_bytes == 0) {
        Some(table) => Err(format!("{table:?} has rows without bytes")),
        None => Ok(()),
    }
}

/// Checks that rows are evicted at the end of a step, and not earlier. A row without a push for
/// three steps still exists at the pull of the fourth step. It is removed at the end of the fourth
/// step if that step does not push it. A discarded step removes no row.
pub(super) fn rows_go_at_the_end_of_a_step(make: &mut MakeClient<'_>) -> Result<(), String> {
    let fails = |e: Error| e.to_string();
    let mut client = make(specs());
    let client = client.as_mut();
    // The plan reads the living table alone. Every slot has its turn in two steps.
    let only = |ids: &[u64]| {
        let mut keys = vec![Vec::new(); TABLES];
        keys[3] = ids.iter().flat_map(|&id| [key(id), key(id)]).collect();
        Arc::new(plan_of(&keys))
    };
    let ids: Vec<u64> = (0..40).collect();
    let parity = |id: &&u64| key(**id).slot().is_multiple_of(2);
    let even: Vec<u64> = ids.iter().filter(parity).copied().collect();
    step(client, 2, &only(&ids)).map_err(fails)?;
    step(client, 4, &only(&[50])).map_err(fails)?;
    step(client, 5, &only(&[50])).map_err(fails)?;
    // Step 6 is the turn of the even slots.
    client.begin_step(Step(6), Rates::default()).map_err(fails)?;
    let counts = |client: &mut dyn TrainClient| -> Result<Vec<u32>, String> {
        let pulled = client.pull(&only(&ids), PullOptions { counts: true }, RowBuffer::default());
        let rows = pulled.map_err(fails)?;
        rows.tables[3].counts.clone().ok_or("no counts were pulled".to_owned())
    };
    if counts(client)?.contains(&0) {
        return Err("a row was evicted before the end of a step".to_owned());
    }
    let none = only(&[50]);
    let gradients = ones(client, &none);
    let staged = client.push(&none, gradients.clone(), PushMode::Stage);
    staged.map_err(fails)?;
    client.discard().map_err(fails)?;
    client.begin_step(Step(6), Rates::default()).map_err(fails)?;
    if counts(client)?.contains(&0) {
        return Err("a step that was discarded has evicted a row".to_owned());
    }
    // One of these rows is pushed in the step that would evict it.
    let seen = only(&[50, even[0]]);
    let gradients = ones(client, &seen);
    client.push(&seen, gradients, PushMode::Stage).map_err(fails)?;
    let report = client.apply(1.0).map_err(fails)?;
    let gone = even.len() as u64 - 1;
    if report.evicted != gone || report.created != 0 {
        return Err(format!("{report:?} instead of {gone} evicted rows"));
    }
    client.begin_step(Step(7), Rates::default()).map_err(fails)?;
    let missing = counts(client)?.iter().filter(|&&count| count == 0).count() as u64;
    if missing != gone {
        return Err(format!("{missing} rows are missing instead of {gone}"));
    }
    Ok(())
}

/// Reads the bytes of all parts of a checkpoint.
pub(super) fn part_bytes(folder: &Path, parts: &[TableParts]) -> Result<Vec<Vec<u8>>, String> {
    let files = parts.iter().flat_map(TableParts::files).map(|p| folder.join(&p.file));
    files.map(|file| std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))).collect()
}

pub(super) fn checkpoints_restore_and_are_verified(
    make: &mut MakeClient<'_>,
) -> Result<(), String> {
    let (files, folder, again) = (Files::new(), Folder::new()?, Folder::new()?);
    let fails = |e: Error| e.to_string();
    let mut whole = make(specs());
    fill(whole.as_mut())?;
    for number in 1..=6 {
        step(whole.as_mut(), number, &plan(&[number, 7, 30 + number])).map_err(fails)?;
    }
    let mut first = make(specs());
    fill(first.as_mut())?;
    for number in 1..=3 {
        step(first.as_mut(), number, &plan(&[number, 7, 30 + number])).map_err(fails)?;
    }
    let parts = first.checkpoint(folder.path(), &files).map_err(fails)?;
    let mut second = make(specs());
    // The restore replaces these rows.
    step(second.as_mut(), 9, &plan(&[2, 50])).map_err(fails)?;
    second.restore(folder.path(), &parts).map_err(fails)?;
    for number in 4..=6 {
        step(second.as_mut(), number, &plan(&[number, 7, 30 + number])).map_err(fails)?;
    }
    let resumed = Folder::new()?;
    let (a, b) = (
        whole.checkpoint(again.path(), &files).map_err(fails)?,
        second.checkpoint(resumed.path(), &files).map_err(fails)?,
    );
    if part_bytes(again.path(), &a)? != part_bytes(resumed.path(), &b)? || a != b {
        return Err("a resumed run differs from one that did not stop".to_owned());
    }

    let before = read(second.as_mut(), &plan(&[2, 7, 31]))?;
    let file = &parts[1].parts[0].file;
    let path = folder.path().join(file);
    let mut bytes = std::fs::read(&path).map_err(|e| e.to_string())?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&path, bytes).map_err(|e| e.to_string())?;
    match second.restore(folder.path(), &parts) {
        Ok(()) => return Err("a part with a flipped bit is accepted".to_owned()),
        Err(e) if !e.to_string().contains(file.as_str()) => {
            return Err(format!("the refusal of `{file}` does not name it: {e}"));
        }
        Err(_) => {}
    }
    if read(second.as_mut(), &plan(&[2, 7, 31]))? != before {
        return Err("a refused checkpoint has changed the tables".to_owned());
    }
    Ok(())
}

pub(super) fn reads_are_a_row_source(make: &mut MakeClient<'_>) -> Result<(), String> {
    let mut client = make(specs());
    fill(client.as_mut())?;
    step(client.as_mut(), 1, &plan(&[1, 2, 25])).map_err(|e| e.to_string())?;
    let mut fresh = make(specs());
    let mut expected = vec![std::collections::BTreeMap::new(); TABLES];
    let mut absent = vec![Vec::new(); TABLES];
    for id in 0..40 {
        let plan = plan(&[id]);
        let answer = client.lookup(&plan, RowBuffer::default());
        let (rows, report) = answer.map_err(|e| e.to_string())?;
        for table in 0..TABLES {
            if report.missing[table] == 0 {
                let width = client.layouts()[table].width();
                expected[table].insert(key(id), rows.tables[table].row(0)[..width].to_vec());
            } else {
                absent[table].push(key(id));
            }
        }
    }
    let held: Vec<usize> = expected.iter().map(std::collections::BTreeMap::len).collect();
    if held != [3, 20, 20, 0] {
        return Err(format!("{held:?} keys are found"));
    }
    // A client without any training reads the default of every key.
    let mut defaults = std::collections::BTreeMap::new();
    for (table, keys) in absent.iter().enumerate() {
        for &key in keys {
            let mut by_table = vec![Vec::new(); TABLES];
            by_table[table].push(key);
            let row = read(fresh.as_mut(), &plan_of(&by_table))?.swap_remove(table);
            let width = client.layouts()[table].width();
            defaults.insert((table, key), row[..width].to_vec());
        }
    }
    let default = |table: TableId, key: FeatureKey| defaults[&(table.index(), key)].clone();
    rows::check(&mut PulledRows::new(client.as_mut()), &expected, &absent, &default)
}

/// Checks that the loss of the regularisers is the sum over the right rows: the rows of the plan in
/// the dynamic table, all rows in the table with a whole-table rule, and no row in the third table.
pub(super) fn the_regulariser_is_summed_over_its_rows(
    make: &mut MakeClient<'_>,
) -> Result<(), String> {
    let mut client = make(specs());
    fill(client.as_mut())?;
    let touched = plan(&[1, 2, 7]);
    step(client.as_mut(), 1, &touched).map_err(|e| e.to_string())?;
    let everything = plan(&(0..20).collect::<Vec<u64>>());
    let mut expected = 0.0;
    for (table, rows) in [(0, &touched), (1, &everything)] {
        let values = read(client.as_mut(), rows)?.swap_remove(table);
        let layout = &client.layouts()[table];
        let (stride, dim) = (layout.stride, layout.segments[0].dim);
        let l2 = f64::from(specs()[table].segments[0].l2);
        let vectors = values.chunks(stride).flat_map(|row| &row[..dim]);
        expected += l2 / 2.0 * vectors.map(|&w| f64::from(w).powi(2)).sum::<f64>();
    }
    let loss = client.regulariser_loss(&touched).map_err(|e| e.to_string())?;
    if (loss - expected).abs() > 1e-6 * expected {
        return Err(format!("the loss of the regularisers is {loss} instead of {expected}"));
    }
    Ok(())
}
