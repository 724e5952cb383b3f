//! Tests of the files that owners write: their names, the slots and digests in their entries, and
//! what an owner opens and refuses of them.

use super::*;

/// Returns a checkpoint that three owners wrote, with their slots.
fn written(workers: &Workers) -> (TempDir, Vec<TableParts>, Vec<Slots>) {
    let slots = divide(&[1344, 2752]);
    let folder = tempfile::tempdir().unwrap();
    let entries = slots.iter().map(|slots| {
        let (mut set, mut step) = (owner(2, slots), 0);
        train(&mut set, workers, &mut step, &Act::Prefill(sorted_keys(0..60)));
        for i in 0..4u64 {
            let keys = (0..90).map(|id| key(id * 3 + i)).collect();
            train(&mut set, workers, &mut step, &Act::Step(keys, false));
        }
        set.begin_snapshot_in_parts(workers, folder.path(), &Files::new(), LIMIT, None).unwrap();
        set.finish_snapshot(workers).unwrap()
    });
    let entries: Vec<Vec<TableParts>> = entries.collect();
    let parts = TableParts::merge(&entries).unwrap();
    (folder, parts, slots)
}

fn restore(
    workers: &Workers,
    folder: &Path,
    parts: &[TableParts],
    slots: &Slots,
) -> Result<TableSet, String> {
    let mut set = owner(2, slots);
    set.restore(workers, folder, parts).map_err(|e| e.to_string())?;
    Ok(set)
}

#[test]
fn files_of_owners_are_named_by_their_slots() {
    let workers = workers(1);
    let (_folder, parts, slots) = written(&workers);
    for (at, table) in parts.iter().enumerate() {
        for file in table.files() {
            let (start, end) = file.slots.unwrap();
            let name = format!("-s{start:04}-{end:04}.arrow");
            assert!(file.file.ends_with(&name), "{}", file.file);
            let is_inside = |owned: &Slots| owned[at].start <= start && end <= owned[at].end;
            assert_eq!(slots.iter().filter(|owned| is_inside(owned)).count(), 1, "{}", file.file);
        }
    }
    let kinds = ["narrow-s", "candidates-s", "filter-s", "part-s"];
    let has =
        |kind: &&str| parts.iter().flat_map(TableParts::files).any(|f| f.file.contains(*kind));
    assert!(kinds.iter().all(has));
}

#[test]
fn tools_read_the_files_of_owners() {
    let workers = workers(2);
    let (folder, parts, _) = written(&workers);
    let one = restore(&workers, folder.path(), &parts, &divide(&[])[0]).unwrap();
    let other = tempfile::tempdir().unwrap();
    let files = Files::new();
    let parts_of_one = checkpoint_oracle(&one, &workers, other.path(), &files, LIMIT).unwrap();
    let ids: Vec<FeatureKey> = (0..300).map(key).collect();
    let read = |folder: &Path, parts: &[TableParts]| -> Vec<Vec<u32>> {
        let mut source = PartSource::open(&workers, folder, specs(), parts).unwrap();
        let mut rows = RowBuffer::default();
        source.lookup(&plan_of(&vec![ids.clone(); specs().len()]), &mut rows).unwrap();
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect();
        rows.tables.iter().map(|table| bits(&table.values)).collect()
    };
    assert!(read(folder.path(), &parts) == read(other.path(), &parts_of_one));
    let layer = |folder: &Path, parts: &[TableParts]| {
        let (to, pace) = (tempfile::tempdir().unwrap(), &mut Unthrottled);
        layer_of_checkpoint(&workers, folder, &specs(), parts, &files, to.path(), pace).unwrap()
    };
    assert!(layer(folder.path(), &parts) == layer(other.path(), &parts_of_one));
    for (at, spec) in specs().into_iter().enumerate() {
        let open = |folder: &Path, parts: &[TableParts]| {
            TableView::open(&workers, folder, spec.clone(), parts).unwrap()
        };
        let (cut, even) = (open(folder.path(), &parts), open(other.path(), &parts_of_one));
        let (a, b) = (cut.survey(&workers, 9), even.survey(&workers, 9));
        assert_eq!((a.counts, a.waiting, a.slots), (b.counts, b.waiting, b.slots));
        for &id in &ids {
            assert_eq!((cut.get(id), cut.waiting(id)), (even.get(id), even.waiting(id)));
        }
        // The copies without some rows are the same, except that the files of filters are not cut
        // again.
        let keep = Keep::First { rows: a.rows / 2, by: Order::Count };
        let shrunk = |view: &TableView, listed: &TableParts| {
            let plan = match spec.dense {
                true => view.plan_whole(&workers),
                false => view.plan_shrink(&workers, keep, 9).unwrap(),
            };
            let to = tempfile::tempdir().unwrap();
            let written = view.write_shrunk(&workers, to.path(), &files, &plan, listed).unwrap();
            assert_eq!(written.rows, plan.after.rows);
            TableParts { filter: None, ..written }
        };
        assert_eq!(shrunk(&cut, &parts[at]), shrunk(&even, &parts_of_one[at]), "{}", spec.name);
    }
}

#[test]
fn an_owner_opens_only_the_files_of_its_slots() {
    let workers = workers(2);
    let (folder, parts, slots) = written(&workers);
    let whole = restore(&workers, folder.path(), &parts, &divide(&[])[0]).unwrap();
    let whole = contents(&whole);
    let is_needed = |file: &PartInfo, owned: &Range<usize>| {
        let (start, end) = file.slots.unwrap();
        !owned.is_empty() && start < owned.end && owned.start < end
    };
    let narrower: Slots = specs().iter().map(|_| 100..164).collect();
    let nothing: Slots = specs().iter().map(|_| 64..64).collect();
    for slots in slots.iter().chain([&narrower, &nothing]) {
        let copy = tempfile::tempdir().unwrap();
        let mut left_out = 0;
        for (table, owned) in parts.iter().zip(slots) {
            std::fs::create_dir_all(copy.path().join("tables").join(&table.table)).unwrap();
            for file in table.files() {
                match is_needed(file, owned) {
                    true => {
                        let to = copy.path().join(&file.file);
                        std::fs::copy(folder.path().join(&file.file), to).unwrap();
                    }
                    false => left_out += 1,
                }
            }
        }
        assert!(left_out > 20, "{left_out}");
        let set = restore(&workers, copy.path(), &parts, slots).unwrap();
        assert!(contents(&set) == only(&whole, slots));
        // A file of the owned slots is missing.
        let mut needed = parts
            .iter()
            .zip(slots)
            .flat_map(|(table, owned)| table.files().filter(|file| is_needed(file, owned)));
        if let Some(file) = needed.next() {
            std::fs::remove_file(copy.path().join(&file.file)).unwrap();
            let error = restore(&workers, copy.path(), &parts, slots).unwrap_err();
            assert!(error.contains(&file.file), "{error}");
        }
    }
}

#[test]
fn a_listing_that_does_not_cover_the_slots_once_is_refused() {
    let workers = workers(1);
    let (folder, good, slots) = written(&workers);
    let everything = &divide(&[])[0];
    restore(&workers, folder.path(), &good, everything).unwrap();
    for kind in ["part", "narrow", "candidates", "filter"] {
        let refused = |change: &dyn Fn(&mut Vec<PartInfo>), expected: &str| {
            let mut parts = good.clone();
            let mut name = String::new();
            for table in &mut parts {
                let files = match kind {
                    "narrow" => table.narrow.as_mut().map(|group| &mut group.parts),
                    "candidates" => table.candidates.as_mut().map(|group| &mut group.parts),
                    "filter" => table.filter.as_mut().map(|group| &mut group.parts),
                    _ => Some(&mut table.parts),
                };
                if let Some(files) = files.filter(|files| files.len() > 2) {
                    change(files);
                    name = table.table.clone();
                    break;
                }
            }
            // An owner of other slots refuses the listing too.
            for slots in [everything, &slots[2]] {
                let error = restore(&workers, folder.path(), &parts, slots).unwrap_err();
                assert!(error.contains(&format!("tables/{name}: ")), "{error}");
                assert!(error.contains(kind) && error.contains(expected), "{error}");
            }
        };
        refused(&|files| drop(files.remove(1)), "no file has the slots");
        refused(&|files| drop(files.remove(0)), "no file has the slots 0..");
        refused(&|files| drop(files.pop()), "..4096");
        refused(&|files| files.swap(0, 1), "must be in slot order");
        refused(&|files| files.insert(1, files[0].clone()), "are in two files");
        refused(&|files| files[0].slots.as_mut().unwrap().1 += 1, "are in two files");
        refused(&|files| files[1].slots = None, "has no slots");
        refused(&|files| files[1].slots = Some((9, 3)), "9..3");
        refused(&|files| files[1].slots = Some((9, 99_999)), "9..99999");
    }
}

#[test]
fn slots_that_differ_from_those_in_the_file_are_refused() {
    let workers = workers(1);
    let (folder, mut parts, _) = written(&workers);
    // The manifest exchanges the bounds of two files, together with their names.
    let [first, second] = &mut parts[0].parts[..2] else { unreachable!() };
    let (start, end) = (first.slots.unwrap().0, second.slots.unwrap().1);
    let bound = first.slots.unwrap().1 + 1;
    (first.slots, second.slots) = (Some((start, bound)), Some((bound, end)));
    for file in [first, second] {
        let old = folder.path().join(&file.file);
        let (start, end) = file.slots.unwrap();
        file.file = format!("tables/wide/part-s{start:04}-{end:04}.arrow");
        std::fs::rename(old, folder.path().join(&file.file)).unwrap();
    }
    let error = restore(&workers, folder.path(), &parts, &divide(&[])[0]).unwrap_err();
    assert!(error.contains("tables/wide/part-s") && error.contains("holds slots"), "{error}");
}

#[test]
fn a_digest_that_differs_from_the_rows_is_refused() {
    let workers = workers(2);
    let (folder, good, _) = written(&workers);
    let open = |spec: TableSpec, parts: &[TableParts]| {
        TableView::open(&workers, folder.path(), spec, parts).map_err(|e| e.to_string())
    };
    for (table, spec) in specs().into_iter().enumerate() {
        open(spec.clone(), &good).unwrap();
        let mut parts = good.clone();
        let mut digest = parts[table].digest.unwrap();
        digest += "00000000000000000000000000000001".parse().unwrap();
        parts[table].digest = Some(digest);
        let error = open(spec, &parts).unwrap_err();
        let name = &parts[table].table;
        assert!(error.contains(&format!("tables/{name}: ")), "{error}");
        let words = format!("the checkpoint lists {digest}");
        assert!(error.contains("the rows have the digest") && error.contains(&words), "{error}");
    }
}

#[test]
fn entries_without_slots_and_digests_are_read() {
    let workers = workers(2);
    let mut set = filled(&workers, 3, 100);
    (1..=3).for_each(|t| plain_step(&mut set, &workers, t, 100));
    let (folder, again) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (parts, before) = checkpoint(&set, &workers, folder.path());
    let mut old = parts.clone();
    for table in &mut old {
        table.digest = None;
        let groups = [&mut table.narrow, &mut table.candidates, &mut table.filter];
        let files = groups.into_iter().flatten().flat_map(|group| &mut group.parts);
        files.chain(&mut table.parts).for_each(|file| file.slots = None);
    }
    assert!(old.iter().any(|table| table.parts.len() > 1));
    let mut restored = TableSet::new(everything(), shards(2)).unwrap();
    restored.restore(&workers, folder.path(), &old).unwrap();
    assert!(checkpoint(&restored, &workers, again.path()) == (parts, before));
    // Without slots, the number of files must be a power of two.
    let files = old[0].parts.clone();
    old[0].parts.extend([files[0].clone()]);
    let error = restored.restore(&workers, folder.path(), &old).unwrap_err().to_string();
    assert!(error.contains("instead of a power of two"), "{error}");
}
