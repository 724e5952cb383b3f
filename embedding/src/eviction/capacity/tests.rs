//! Tests of the numbers of rows that are kept free, visited and evicted.

use zillion_feature::SLOTS;
use zillion_feature::random::{combine, mix64};
use zillion_rows::memory::rows_within;

use super::*;

/// Returns the demand of a step that had `rows` keys and created a row for each of them.
fn rows(rows: u64) -> Demand {
    Demand { keys: rows, rows }
}

/// The only group of a table.
const WHOLE: Group = Group { index: 0, count: 1 };

/// Returns the visit in a table of one group.
fn plan(rows: u64, limit: u64, demand: Demand, step: u32) -> Option<Visit> {
    Visit::new(rows, limit, demand, step, WHOLE)
}

#[test]
fn room_is_made_for_twice_what_a_step_wants() {
    assert_eq!(headroom(1 << 20, rows(0), WHOLE), 4096);
    assert_eq!(headroom(1 << 20, rows(10_000), WHOLE), 20_000);
    assert_eq!(headroom(100, rows(1000), WHOLE), 25);
    assert_eq!(headroom(1, rows(1), WHOLE), 1);
    assert_eq!(plan(900, 1000, rows(50), 7), None);
    let small = plan(1000, 1000, rows(50), 7).unwrap();
    assert!(small.is_whole && small.excess == 100 && small.evictions(1000) == 100);
    assert_eq!(small.slots(0..SLOTS).count(), SLOTS);
}

#[test]
fn room_is_made_for_all_keys_of_a_step_where_they_are_few() {
    let keys = |keys| Demand { keys, rows: 2000 };
    assert_eq!(headroom(1 << 20, keys(8000), WHOLE), 8500);
    assert_eq!(headroom(1 << 20, keys(15_000), WHOLE), 15_937);
    assert_eq!(headroom(1 << 20, keys(16_000), WHOLE), 4096, "that would be more than a 64th");
}

#[test]
fn large_tables_are_looked_at_in_slices_that_cover_all_slots() {
    let most = 10_000_000;
    let visit = plan(most, most, rows(20_000), 3).unwrap();
    assert_eq!(visit.excess, 40_000);
    let slots = visit.slots(0..SLOTS).count() as u64;
    let looks = slots * most / SLOTS as u64;
    assert!((100_000..=210_000).contains(&looks), "{looks}");
    assert_eq!(visit.evictions(60_000), 24_000);
    let mut seen = vec![false; SLOTS];
    for step in 0..SLOTS as u32 {
        let visit = plan(most, most, rows(20_000), step).unwrap();
        visit.slots(0..SLOTS).for_each(|slot| seen[slot] = true);
    }
    assert!(seen.iter().all(|&seen| seen));
    // The number of rows that a step visits has a bound for every number of rows to evict.
    let all = plan(most, most, rows(most), 3).unwrap();
    assert!(all.slots(0..SLOTS).count() as u64 * most / SLOTS as u64 <= 2 * MOST_LOOKS);
}

#[test]
fn no_slot_misses_its_turn_where_steps_differ() {
    let (rows, mut longest, mut shortest) = (10_000_000, 0, SLOTS);
    let mut last = vec![0; SLOTS];
    for step in 1..4000u32 {
        let wanted = 10_000 + u64::from(step.wrapping_mul(0x9e37_79b9) >> 16);
        let visit = plan(rows, rows, Demand { keys: wanted, rows: wanted }, step);
        let slots: Vec<usize> = visit.unwrap().slots(0..SLOTS).collect();
        longest = longest.max(SLOTS / slots.len());
        shortest = shortest.min(SLOTS / slots.len());
        slots.iter().for_each(|&slot| last[slot] = step);
        let waiting = last.iter().map(|&last| step - last).max();
        assert!(waiting.unwrap() as usize <= longest, "step {step}, {longest}");
    }
    assert!(longest >= 4 * shortest, "periods of {shortest} to {longest} steps");
}

#[test]
fn the_most_rows_are_found_that_fit() {
    for limit in [0, 99, 100, 101, 199, 200, 1 << 40] {
        let rows = rows_within(limit, |rows| 100 * rows);
        assert_eq!(rows, (limit / 100).min((1 << 31) - 1));
    }
}

#[test]
fn memory_is_shared_out_evenly_among_those_who_need_it() {
    let claim = |least, most| Claim { least, most };
    assert_eq!(shares(100, &[claim(0, 10), claim(0, 20)]), [10, 20]);
    assert_eq!(shares(100, &[claim(0, 10), claim(0, 80), claim(0, 1000)]), [10, 45, 45]);
    assert_eq!(shares(100, &[claim(70, 80), claim(0, 1000)]), [70, 30]);
    assert_eq!(shares(100, &[claim(90, 90), claim(90, 90)]), [90, 90]);
    assert!(shares(5, &[]).is_empty());
}

/// Returns the share of a step's new rows that a group gets. Keys are mixed, so the share varies by
/// about the square root.
fn share(new: u64, group: Group, step: u32) -> u64 {
    let mean = new as f64 / group.count as f64;
    let draw = |i| mix64(combine(combine(u64::from(step), group.index as u64), i));
    let normal = (0..12).map(|i| draw(i) as f64 / u64::MAX as f64).sum::<f64>() - 6.0;
    (mean + normal * mean.sqrt()).max(0.0) as u64
}

/// Runs a table at its limit, with `new` new keys in each step. Returns the number of rows that
/// were visited, the number of steps of groups that lacked room, and the smallest and the largest
/// number of rows at the end of a step.
fn simulate(limit: u64, count: usize, new: u64) -> (u64, u64, u64, u64) {
    let groups: Vec<Group> = Group::all(count).collect();
    let mut rows: Vec<u64> = groups.iter().map(|group| group.part(limit)).collect();
    let (mut looks, mut refusals, mut least, mut most) = (0, 0, limit, 0);
    for step in 1..1000 {
        for (group, rows) in groups.iter().zip(&mut rows) {
            let limit = group.part(limit);
            let wanted = if count == 1 { new } else { share(new, *group, step) };
            let made = wanted.min(limit - *rows);
            *rows += made;
            let demand = Demand { keys: 5 * wanted, rows: wanted };
            let visit = Visit::new(*rows, limit, demand, step, *group);
            let slots = visit.map_or(0, |visit| visit.slots(0..SLOTS).count() as u64);
            let seen = slots * *rows / group.width() as u64;
            *rows -= visit.map_or(0, |visit| visit.evictions(seen));
            if step > 200 {
                looks += seen;
                refusals += u64::from(made < wanted);
            }
        }
        if step > 200 {
            least = least.min(rows.iter().sum());
            most = most.max(rows.iter().sum());
        }
    }
    (looks, refusals, least, most)
}

#[test]
fn a_table_of_many_groups_visits_as_many_rows_as_one_group() {
    for (limit, new) in [
        (10_000_000, 500),
        (10_000_000, 2000),
        (10_000_000, 5000),
        (10_000_000, 10_000),
        (10_000_000, 20_000),
        (10_000_000, 30_000),
        (10_000_000, 60_000),
        (100_000_000, 20_000),
        (1_000_000, 2000),
        (1_000_000, 20_000),
        (262_144, 500),
        (262_144, 5000),
    ] {
        let (one, ..) = simulate(limit, 1, new);
        let (many, refusals, least, most) = simulate(limit, 64, new);
        assert!(many <= 2 * one, "{limit} rows, {new} new keys: {many} looks instead of {one}");
        assert_eq!(refusals, 0, "{limit} rows, {new} new keys");
        // The room of one step and the spare room are small parts of the table.
        let free = 2 * new + new / 2 + limit / 50;
        assert!(
            most <= limit && least + free > limit,
            "{limit}, {new} new: {least} to {most} rows"
        );
    }
}

#[test]
fn no_slot_of_a_group_misses_its_turn() {
    let group = Group { index: 5, count: 64 };
    let (limit, mut periods) = (200_000u64, std::collections::BTreeSet::new());
    let (mut rows, mut last) = (limit, vec![0; group.width()]);
    for step in 1..100_000u32 {
        let made = mix64(u64::from(step / 3000)) % 400;
        rows += made.min(limit - rows);
        let demand = Demand { keys: 5 * made, rows: made };
        periods.insert(Spare::new(limit, demand, group).steps);
        let Some(visit) = Visit::new(rows, limit, demand, step, group) else { continue };
        let slots: Vec<usize> = visit.slots(0..SLOTS).collect();
        assert!(slots.iter().all(|slot| group.slots().contains(slot)));
        rows -= visit.evictions(slots.len() as u64 * rows / group.width() as u64);
        slots.iter().for_each(|slot| last[slot - group.slots().start] = step);
        if step > 10_000 && made > 20 {
            let waiting = last.iter().map(|&last| step - last).max().unwrap();
            // A slot is due once in each period of turns; two periods can meet where they change.
            assert!(waiting <= 2 * 64 * 64, "{waiting} steps at step {step}");
        }
    }
    assert!(periods.len() >= 4, "{periods:?}");
}

#[test]
fn a_group_has_its_turns_in_steps_of_its_own() {
    let spare = Spare { rows: 900, steps: 8 };
    for index in 0..64 {
        let group = Group { index, count: 64 };
        let mut visited = vec![0; 64];
        for step in 0..64 * 8 {
            if spare.is_turn(step, group) {
                visited[step as usize % 64] += 1;
                let halved = Spare { steps: 4, ..spare };
                assert!(halved.is_turn(step, group), "a turn of every shorter period");
            }
        }
        assert!(visited.iter().all(|&visits| visits == 1), "group {index}: {visited:?}");
    }
    let at_once = |step| Group::all(64).filter(|&group| spare.is_turn(step, group)).count();
    assert!((0..1000).all(|step| at_once(step) == 8));
}
