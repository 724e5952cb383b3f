//! The bounds of rows, disk and memory, and the space of segments.

use super::model::Model;
use super::*;

/// Returns an impression whose key and time are its number, with a row of `bytes` bytes.
fn numbered(number: u32, time: i64, bytes: usize) -> Input {
    let mut row = number.to_le_bytes().to_vec();
    row.resize(bytes.max(4), number as u8);
    let key = number.to_le_bytes().to_vec();
    Input::Impression { partition: 0, key, time: Some(time), row, weight: 1.0 }
}

fn number_of(row: &Row) -> u32 {
    u32::from_le_bytes(*row.row.first_chunk().unwrap())
}

/// Returns settings whose windows never end during a test.
fn endless() -> Settings {
    let mut settings = settings(Emit::Window);
    settings.wait = 1 << 40;
    settings.times.max_ahead = 1 << 40;
    settings
}

/// Returns the size of all segments in the folder of the joiner.
fn bytes_on_disk(workplace: &Workplace) -> u64 {
    let entries = std::fs::read_dir(workplace.folder.path().join("rows")).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn memory_holds_at_four_times_its_bound() {
    let mut settings = endless();
    settings.bounds.max_disk_bytes = 64 << 20;
    let most = settings.rows_in_memory();
    assert!((10_000..30_000).contains(&most), "{most}");
    let mut workplace = Workplace::new(settings, 1);
    let mut emitted = Vec::new();
    for number in 0..4 * most as u32 {
        let (_, rows) = workplace.push(&numbered(number, i64::from(number), 100));
        emitted.extend(rows.iter().map(|row| (number_of(row), row.reason)));
        let extent = workplace.joiner.extent();
        assert!(extent.memory_bytes <= settings.bounds.max_memory_bytes);
        assert!(extent.disk_bytes <= settings.bounds.max_disk_bytes);
        if number % 1_000 == 0 {
            let allocated = workplace.joiner.pending.index_bytes();
            assert!(allocated <= settings.bounds.max_memory_bytes, "{allocated}");
        }
    }
    let expected: Vec<_> = (0..3 * most as u32).map(|number| (number, Reason::Bound)).collect();
    assert_eq!(emitted, expected, "the oldest rows leave, one for each new one");
    let counters = workplace.counters();
    assert_eq!((counters.impressions, counters.evicted_rows), (4 * most, 3 * most));
    assert_eq!((counters.negatives, workplace.joiner.extent().rows), (3 * most, most));
    // An evicted row that comes again is taken again: the joiner remembers no rows that have left.
    let (outcome, rows) = workplace.push(&numbered(0, 0, 100));
    assert_eq!((outcome, rows.len()), (Some(Outcome::Taken), 1));
}

#[test]
fn feedback_counts_in_the_bound_of_memory() {
    let mut settings = endless();
    settings.bounds.max_disk_bytes = 64 << 20;
    let mut workplace = Workplace::new(settings, 1);
    let rows = 4_000u32;
    let mut positives = 0;
    for number in 0..rows {
        workplace.push(&numbered(number, i64::from(number), 0));
        for kind in 0..5 {
            let key = number.to_le_bytes().to_vec();
            let time = Some(i64::from(number));
            let input = Input::Feedback { partition: 0, key, time, kind, value: 1.0 };
            positives += workplace.push(&input).1.len() as u64;
            let extent = workplace.joiner.extent();
            assert!(extent.memory_bytes <= settings.bounds.max_memory_bytes);
        }
    }
    let (counters, extent) = (workplace.counters(), workplace.joiner.extent());
    assert!(counters.evicted_rows > 1_000, "{}", counters.evicted_rows);
    assert_eq!(counters.evicted_rows + extent.rows, u64::from(rows));
    assert_eq!(counters.joined_feedback, u64::from(rows) * 5);
    assert_eq!(counters.positives + counters.negatives, counters.evicted_rows);
    assert!(positives <= counters.positives);
}

#[test]
fn early_feedback_has_a_bound_of_its_own() {
    let settings = endless();
    let most = settings.bounds.max_memory_bytes / 4 / 224;
    let mut workplace = Workplace::new(settings, 1);
    for number in 0..4 * most {
        let (key, time) = (number.to_le_bytes().to_vec(), Some(number as i64));
        workplace.push(&Input::Feedback { partition: 0, key, time, kind: 0, value: 1.0 });
    }
    assert_eq!(workplace.counters().evicted_feedback, 3 * most);
    assert_eq!(workplace.joiner.extent().early_feedback, most);
    // Feedback that is earlier than all others has no room.
    let oldest = |time| Input::Feedback {
        partition: 0,
        key: b"oldest".to_vec(),
        time: Some(time),
        kind: 0,
        value: 1.0,
    };
    let outcome = |evicted| (Some(evicted), Vec::new());
    assert_eq!(workplace.push(&oldest(3 * most as i64 - 1)), outcome(Outcome::Evicted));
    assert_eq!(workplace.counters().evicted_feedback, 3 * most + 1);
    // The newest feedback is kept.
    let (key, time) = ((3 * most).to_le_bytes().to_vec(), Some(4 * most as i64));
    let row = b"row".to_vec();
    workplace.push(&Input::Impression { partition: 0, key, time, row, weight: 1.0 });
    assert_eq!(workplace.counters().joined_feedback, 1);
    workplace.push(&Input::End);
    assert_eq!(workplace.counters().unmatched_feedback, most - 1);
}

#[test]
fn the_disk_holds_at_four_times_its_bound() {
    let settings = endless();
    let record = 1_000 + 44;
    let most = settings.bounds.max_disk_bytes / 2 / record;
    let mut workplace = Workplace::new(settings, 1);
    let mut emitted = Vec::new();
    for number in 0..4 * most as u32 {
        let (_, rows) = workplace.push(&numbered(number, i64::from(number), 1_000));
        emitted.extend(rows.iter().map(number_of));
        let extent = workplace.joiner.extent();
        assert_eq!(extent.row_bytes, extent.rows * record);
        assert!(extent.disk_bytes <= settings.bounds.max_disk_bytes);
    }
    assert_eq!(emitted, (0..3 * most as u32).collect::<Vec<_>>());
    assert_eq!(workplace.counters().evicted_rows, 3 * most);
    assert_eq!(bytes_on_disk(&workplace), workplace.joiner.extent().disk_bytes);
    workplace.push(&Input::End);
    assert_eq!(bytes_on_disk(&workplace), 0, "segments without rows are removed");
}

/// Every second row stays for long, so that half of each segment is of rows that have left.
#[test]
fn segments_are_rewritten_when_space_demands() {
    let mut settings = endless();
    settings.wait = 100;
    let mut workplace = Workplace::new(settings, 1);
    let mut model = Model::new(settings, 1);
    let mut segments_written = 0;
    for number in 0..850u32 {
        // The watermark is held by a partition whose events have the small times.
        let near = i64::from(number);
        let time = if number % 2 == 0 { near } else { near + 1_000_000 };
        let mut inputs = vec![numbered(number, time, 1_000)];
        if number == 0 {
            workplace.joiner.add_partition(partition(1)).unwrap();
            drain(&mut workplace.joiner, &mut Vec::new()).unwrap();
            model = Model::new(settings, 2);
        }
        let (key, time) = (vec![1; 9], Some(near));
        inputs.push(Input::Feedback { partition: 1, key, time, kind: 0, value: 1.0 });
        for input in &inputs {
            assert_eq!(workplace.push(input), model.push(input));
        }
        assert!(workplace.joiner.extent().disk_bytes <= settings.bounds.max_disk_bytes);
        segments_written = workplace.joiner.pending.next_number();
    }
    assert_eq!(bytes_on_disk(&workplace), workplace.joiner.extent().disk_bytes);
    // Without rewriting, a segment has 15 rows of 1,044 bytes.
    assert!(segments_written > 850 / 15 + 5, "{segments_written}");
    assert_eq!(workplace.push(&Input::End), model.push(&Input::End));
    assert_eq!(workplace.counters(), model.counters);
    assert_eq!(workplace.counters().evicted_rows, 0);
}

#[test]
fn small_segments_are_merged() {
    let settings = endless();
    let mut workplace = Workplace::new(settings, 1);
    let mut model = Model::new(settings, 1);
    for number in 0..200u32 {
        let input = numbered(number, i64::from(number * 7 % 100), 100);
        assert_eq!(workplace.push(&input), model.push(&input));
        let checkpoint = workplace.checkpoint();
        std::fs::remove_dir_all(checkpoint).unwrap();
        // At most three segments can be at least half full of these rows.
        assert!(workplace.joiner.pending.segments().len() <= 32 + 3);
    }
    assert_eq!(workplace.push(&Input::End), model.push(&Input::End));
}

#[test]
fn rows_that_leave_soon_reach_no_disk() {
    let mut settings = settings(Emit::Window);
    settings.wait = 5;
    let mut workplace = Workplace::new(settings, 1);
    for number in 0..1_000u32 {
        workplace.push(&numbered(number, i64::from(number), 200));
    }
    assert_eq!(workplace.counters().negatives, 1_000 - 16);
    assert_eq!((workplace.joiner.pending.next_number(), bytes_on_disk(&workplace)), (0, 0));
}
