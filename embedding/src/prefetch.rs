//! The order in which the keys of a run are looked up. With this order, the processor seldom waits
//! for memory.
//!
//! Each key passes four stages, with some other keys between two stages. First, its bucket is
//! prefetched. Second, the bucket is read, and the row of the key is prefetched. Third, the few
//! keys that need a second lookup are looked up again. Fourth, the row is processed. The stages
//! take turns and handle one key each, so memory is always being fetched while a row is processed.
//! The alternative is to take a block of keys through one stage after another. It fetches many
//! lines at once, but no line while it processes rows. With three random lines and a little work
//! for each key, a key took 42 to 46 ns in turn, and 52 to 58 ns in blocks of sixteen
//! (docs/history/benchmarks-2026.md).

use crate::error::Result;
use crate::index::Entry;

/// The number of keys between two stages, which is a power of two.
const AHEAD: usize = 16;

/// Takes the keys with the positions `0..n` through the stages `ask`, `look`, `look_again` and
/// `work`. Only keys for which `look` returns [`Entry::UNDECIDED`] go through `look_again`. Each
/// stage gets its keys in order. The function stops at the first error. A few keys before the
/// failing key may then be looked up but not processed.
#[inline(always)]
pub(crate) fn in_turn<S>(
    state: &mut S,
    n: usize,
    mut ask: impl FnMut(&mut S, usize),
    mut look: impl FnMut(&mut S, usize) -> Entry,
    mut look_again: impl FnMut(&mut S, usize) -> Result<Entry>,
    mut work: impl FnMut(&mut S, usize, Entry),
) -> Result<()> {
    // A key's entry is stored here from the moment its bucket is read.
    let mut rows = [Entry::UNDECIDED; AHEAD];
    (0..n.min(2 * AHEAD)).for_each(|i| ask(state, i));
    for i in 0..n + AHEAD {
        // The work comes first, so that its key leaves its place to the next key.
        if let Some(i) = i.checked_sub(AHEAD) {
            work(state, i, rows[i % AHEAD]);
        }
        if i < n {
            if i + 2 * AHEAD < n {
                ask(state, i + 2 * AHEAD);
            }
            rows[i % AHEAD] = look(state, i);
        }
        if let Some(i) = i.checked_sub(AHEAD / 2).filter(|&i| i < n)
            && rows[i % AHEAD] == Entry::UNDECIDED
        {
            rows[i % AHEAD] = look_again(state, i)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// The stages that a key goes through.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Stage {
        New,
        Asked,
        Looked,
        LookedAgain,
        Done,
    }

    /// Takes `n` keys through all stages. Every third key goes through `look_again`, which returns
    /// an error for the key `bad`.
    fn send(n: usize, bad: Option<usize>) -> (Vec<Stage>, Result<()>) {
        let mut keys = vec![Stage::New; n];
        let mut done = 0;
        let sent = in_turn(
            &mut keys,
            n,
            |keys, i| assert_eq!(std::mem::replace(&mut keys[i], Stage::Asked), Stage::New),
            |keys, i| {
                assert_eq!(std::mem::replace(&mut keys[i], Stage::Looked), Stage::Asked);
                if i % 3 == 0 { Entry::UNDECIDED } else { Entry::full(i as u32) }
            },
            |keys, i| {
                assert_eq!(std::mem::replace(&mut keys[i], Stage::LookedAgain), Stage::Looked);
                assert_eq!(i % 3, 0);
                if Some(i) == bad {
                    return Err(Error::ShardFull { table: "t".to_owned() });
                }
                Ok(Entry::full(1000 + i as u32))
            },
            |keys, i, row| {
                let (stage, expected) = match i % 3 {
                    0 => (Stage::LookedAgain, 1000 + i as u32),
                    _ => (Stage::Looked, i as u32),
                };
                assert_eq!(std::mem::replace(&mut keys[i], Stage::Done), stage);
                assert_eq!((row.row(), i), (expected, done), "rows are worked on in order");
                done += 1;
            },
        );
        (keys, sent)
    }

    #[test]
    fn every_key_goes_through_all_stages_in_order() {
        for n in 0..5 * AHEAD {
            let (keys, sent) = send(n, None);
            sent.unwrap();
            assert!(keys.iter().all(|&stage| stage == Stage::Done), "{n} keys: {keys:?}");
        }
    }

    #[test]
    fn the_first_error_ends_it_and_nothing_behind_it_is_worked_on() {
        let (keys, sent) = send(100, Some(60));
        assert!(sent.is_err());
        assert_eq!(keys[60], Stage::LookedAgain);
        assert!(keys[60..].iter().all(|&stage| stage != Stage::Done));
        assert!(keys[..40].iter().all(|&stage| stage == Stage::Done));
    }
}
