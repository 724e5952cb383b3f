//! The merging of the entries that several owners of slots wrote for the same tables.

use super::cut::{check_names, slots_of};
use super::{
    CANDIDATES, ChangedParts, FILTER, GONE, ListedParts, NARROW, PartInfo, ROWS, RowDigest,
    TableParts,
};
use crate::error::{Error, Result};

impl TableParts {
    /// Merges the entries of the owners of the slots of some tables. `owners` has the list of
    /// entries that each owner wrote; all lists have the same tables in the same order. The merged
    /// entries list the files of all owners in slot order.
    ///
    /// # Errors
    /// Returns [`Error::Mismatch`] with the table if the entries of the owners differ in their
    /// tables, dirty epochs or kinds of files, or if their files do not cover every slot exactly
    /// once. Returns [`Error::Misuse`] if there are no owners.
    pub fn merge(owners: &[Vec<Self>]) -> Result<Vec<Self>> {
        let Some((first, others)) = owners.split_first() else {
            let reason = "a checkpoint has no entries of tables; give the entries of each owner";
            return Err(Error::misuse(reason));
        };
        for other in others {
            if other.len() != first.len() {
                let reason = format!(
                    "one owner wrote {} tables and another owner {}; use owners of the same job",
                    first.len(),
                    other.len()
                );
                return Err(Error::misuse(reason));
            }
        }
        let merged = first.iter().enumerate().map(|(at, table)| {
            let all: Vec<&Self> = owners.iter().map(|owner| &owner[at]).collect();
            merge_table(table, &all)
        });
        merged.collect()
    }
}

/// Merges the entries of one table. `first` is one of them.
fn merge_table(first: &TableParts, all: &[&TableParts]) -> Result<TableParts> {
    let name = &first.table;
    let refuse = |reason: String| Err(Error::mismatch(name, reason));
    if let Some(other) = all.iter().find(|entry| entry.table != *name) {
        let other = &other.table;
        return refuse(format!(
            "another owner wrote table `{other}` in its place; use owners of the same job"
        ));
    }
    if let Some(other) = all.iter().find(|entry| entry.dirty_epoch != first.dirty_epoch) {
        return refuse(format!(
            "the owners wrote it in the dirty epochs {} and {}; write the checkpoint again at one \
             moment",
            first.dirty_epoch, other.dirty_epoch
        ));
    }
    check_presence(name, all, "a digest", |entry| entry.digest.is_some())?;
    let parts: Vec<&[PartInfo]> = all.iter().map(|entry| &entry.parts[..]).collect();
    let digests = all.iter().filter_map(|entry| entry.digest);
    Ok(TableParts {
        table: name.clone(),
        rows: all.iter().map(|entry| entry.rows).sum(),
        dirty_epoch: first.dirty_epoch,
        parts: merge_files(name, ROWS, &parts)?,
        narrow: merge_group(name, all, NARROW, |entry| entry.narrow.as_ref())?,
        candidates: merge_group(name, all, CANDIDATES, |entry| entry.candidates.as_ref())?,
        filter: merge_group(name, all, FILTER, |entry| entry.filter.as_ref())?,
        changes: merge_changes(name, all)?,
        digest: first.digest.map(|_| digests.sum::<RowDigest>()),
    })
}

/// Merges the details of the changes. Returns `None` if the entries hold all rows.
fn merge_changes(table: &str, all: &[&TableParts]) -> Result<Option<ChangedParts>> {
    check_presence(table, all, "parts with changes only", |entry| entry.changes.is_some())?;
    let changes: Vec<&ChangedParts> = all.iter().filter_map(|e| e.changes.as_ref()).collect();
    let Some(first) = changes.first() else { return Ok(None) };
    if changes.iter().any(|other| other.below != first.below) {
        let reason = "the changes of the owners are based on different checkpoints; write a whole \
                      checkpoint";
        return Err(Error::mismatch(table, reason));
    }
    Ok(Some(ChangedParts {
        rows: changes.iter().map(|changes| changes.rows).sum(),
        gone: merge_group(table, all, GONE, |entry| entry.changes.as_ref()?.gone.as_ref())?,
        below: first.below.clone(),
    }))
}

/// Checks that all entries or none of them have a property.
fn check_presence(
    table: &str,
    all: &[&TableParts],
    what: &str,
    has: impl Fn(&TableParts) -> bool,
) -> Result<()> {
    let count = all.iter().filter(|entry| has(entry)).count();
    if count == 0 || count == all.len() {
        return Ok(());
    }
    let reason = format!(
        "{count} of {} owners wrote {what}, and the others did not; write the checkpoint again",
        all.len()
    );
    Err(Error::mismatch(table, reason))
}

/// Merges the groups of files of one kind. Returns `None` if no owner has such a group.
fn merge_group(
    table: &str,
    all: &[&TableParts],
    kind: &str,
    group: impl Fn(&TableParts) -> Option<&ListedParts>,
) -> Result<Option<ListedParts>> {
    check_presence(table, all, &format!("files `{kind}-*`"), |entry| group(entry).is_some())?;
    let groups: Vec<&ListedParts> = all.iter().filter_map(|entry| group(entry)).collect();
    if groups.is_empty() {
        return Ok(None);
    }
    let parts: Vec<&[PartInfo]> = groups.iter().map(|group| &group.parts[..]).collect();
    let rows = groups.iter().map(|group| group.rows).sum();
    Ok(Some(ListedParts { rows, parts: merge_files(table, kind, &parts)? }))
}

/// Returns the files of all owners in slot order. Checks that they cover every slot exactly once.
fn merge_files(table: &str, kind: &str, owners: &[&[PartInfo]]) -> Result<Vec<PartInfo>> {
    let mut files = owners.concat();
    files.sort_by_key(|file| file.slots);
    let slots = slots_of(&files);
    slots.and_then(|slots| check_names(table, kind, &files, &slots)).map_err(|reason| {
        let remedy = "give the entries of every owner once";
        Error::mismatch(table, format!("files `{kind}-*`: {reason}; {remedy}"))
    })?;
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(start: usize, end: usize) -> PartInfo {
        PartInfo {
            file: format!("tables/ids/part-s{start:04}-{end:04}.arrow"),
            rows: 3,
            bytes: 4,
            blake3: String::new(),
            slots: Some((start, end)),
        }
    }

    fn entry(files: &[(usize, usize)]) -> TableParts {
        let parts: Vec<PartInfo> = files.iter().map(|&(start, end)| file(start, end)).collect();
        TableParts {
            table: "ids".to_owned(),
            rows: 3 * parts.len() as u64,
            dirty_epoch: 2,
            parts,
            narrow: None,
            candidates: None,
            filter: None,
            changes: None,
            digest: Some(RowDigest::default()),
        }
    }

    #[test]
    fn entries_of_owners_are_merged_in_slot_order() {
        let owners =
            [vec![entry(&[(2048, 4096)])], vec![entry(&[])], vec![entry(&[(0, 64), (64, 2048)])]];
        let merged = TableParts::merge(&owners).unwrap();
        assert_eq!(merged, [entry(&[(0, 64), (64, 2048), (2048, 4096)])]);
    }

    #[test]
    fn entries_that_do_not_fit_are_refused_by_name() {
        let good = [entry(&[(0, 64)]), entry(&[(64, 4096)])];
        let refused = |change: &dyn Fn(&mut [TableParts; 2]), expected: &[&str]| {
            let mut entries = good.clone();
            change(&mut entries);
            let error = TableParts::merge(&entries.map(|entry| vec![entry])).unwrap_err();
            let error = error.to_string();
            assert!(expected.iter().all(|words| error.contains(words)), "{error}");
        };
        refused(&|e| e[1] = entry(&[(128, 4096)]), &["`ids`", "no file has the slots 64..128"]);
        refused(&|e| e[1] = entry(&[(64, 4000)]), &["`ids`", "no file has the slots 4000..4096"]);
        refused(&|e| e[1] = entry(&[(32, 4096)]), &["`ids`", "slots 32..64 are in two files"]);
        refused(&|e| e[1] = e[0].clone(), &["`ids`", "slots 0..64 are in two files"]);
        refused(&|e| e[1].parts[0].slots = None, &["has no slots"]);
        refused(&|e| e[1].parts[0].slots = Some((64, 9999)), &["64..9999"]);
        refused(&|e| e[1].parts[0].file = "part".to_owned(), &["instead of", "s0064-4096"]);
        refused(&|e| e[1].table = "users".to_owned(), &["`ids`", "`users`"]);
        refused(&|e| e[1].dirty_epoch = 3, &["`ids`", "epochs 2 and 3"]);
        refused(&|e| e[1].digest = None, &["1 of 2 owners", "a digest"]);
        let group = || Some(ListedParts::of(Vec::new()));
        refused(&|e| e[0].narrow = group(), &["1 of 2 owners", "`narrow-*`"]);
        refused(&|e| e[1].candidates = group(), &["`candidates-*`"]);
        refused(&|e| e[1].filter = group(), &["`filter-*`"]);
        let changes = |gone| Some(ChangedParts { rows: 3, gone, below: Vec::new() });
        refused(&|e| e[1].changes = changes(None), &["1 of 2 owners", "changes only"]);
        let one_has_gone = |e: &mut [TableParts; 2]| {
            (e[0].changes, e[1].changes) = (changes(group()), changes(None));
        };
        refused(&one_has_gone, &["1 of 2 owners", "`gone-*`"]);
        let error = TableParts::merge(&[]).unwrap_err().to_string();
        assert!(error.contains("no entries"), "{error}");
        let error = TableParts::merge(&[vec![good[0].clone()], vec![]]).unwrap_err().to_string();
        assert!(error.contains("1 tables and another owner 0"), "{error}");
    }
}
