//! Plans from keys that come from outside of the process. Such keys are checked before they reach a
//! table, because tables rely on the order of a plan.

use crate::error::PlanError;
use crate::key::{FeatureKey, TableId};
use crate::plan::{LookupPlan, Occurrences, TablePlan};

impl TablePlan {
    /// Makes the plan of a table from its unique keys, which must be in ascending order of their
    /// slots. Keys of one slot may be in any order. `counts` has the number of occurrences of each
    /// key, or is `None` if occurrences are not needed. The plan has the offsets of the occurrences
    /// and no positions.
    ///
    /// The check takes time proportional to the number of keys, plus the sorting of the keys inside
    /// each slot.
    ///
    /// # Errors
    /// Returns an error if the keys are not in the order of their slots, if a key occurs twice, if
    /// there is not one count for each key, if a count is 0, or if the keys or their occurrences do
    /// not fit into 32 bits.
    pub fn checked(
        table: TableId,
        keys: Vec<FeatureKey>,
        counts: Option<&[u32]>,
    ) -> Result<Self, PlanError> {
        let table_number = table.0;
        if u32::try_from(keys.len()).is_err() {
            return Err(PlanError::TooMany { table: table_number });
        }
        let mut slots: Vec<(u16, u32)> = Vec::new();
        let mut sorted: Vec<FeatureKey> = Vec::new();
        let mut first = 0;
        for run in keys.chunk_by(|a, b| a.slot() == b.slot()) {
            let slot = run[0].slot() as u16;
            if slots.last().is_some_and(|&(before, _)| before >= slot) {
                let (index, key) = (first as usize, run[0].0);
                return Err(PlanError::Order { table: table_number, index, key });
            }
            sorted.clear();
            sorted.extend_from_slice(run);
            sorted.sort_unstable();
            if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(PlanError::Repeated { table: table_number, key: pair[0].0 });
            }
            slots.push((slot, first));
            first += run.len() as u32;
        }
        let occurrences = match counts {
            None => Occurrences::default(),
            Some(counts) => occurrences(table_number, &keys, counts)?,
        };
        Ok(Self { table, keys, slots, occurrences })
    }
}

/// Returns the offsets of the occurrences of keys that occur `counts` times.
fn occurrences(table: u16, keys: &[FeatureKey], counts: &[u32]) -> Result<Occurrences, PlanError> {
    if counts.len() != keys.len() {
        return Err(PlanError::Counts { table, keys: keys.len(), counts: counts.len() });
    }
    let mut offsets = Vec::with_capacity(counts.len() + 1);
    let mut sum = 0u32;
    offsets.push(sum);
    for (key, &count) in keys.iter().zip(counts) {
        if count == 0 {
            return Err(PlanError::NoOccurrence { table, key: key.0 });
        }
        sum = sum.checked_add(count).ok_or(PlanError::TooMany { table })?;
        offsets.push(sum);
    }
    Ok(Occurrences { offsets, positions: Vec::new() })
}

impl LookupPlan {
    /// Makes the plan of a batch of `rows` rows from checked plans of its tables. The plan has no
    /// columns.
    ///
    /// # Errors
    /// Returns an error if two plans are of the same table.
    pub fn checked(rows: usize, tables: Vec<TablePlan>) -> Result<Self, PlanError> {
        let mut numbers: Vec<u16> = tables.iter().map(|table| table.table.0).collect();
        numbers.sort_unstable();
        match numbers.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(PlanError::SameTable { table: pair[0] }),
            None => Ok(Self { rows, tables, columns: Vec::new() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TABLE: TableId = TableId(3);

    fn key(slot: u64, low: u64) -> FeatureKey {
        FeatureKey(slot << 52 | low)
    }

    fn refusal(keys: &[FeatureKey], counts: Option<&[u32]>) -> String {
        TablePlan::checked(TABLE, keys.to_vec(), counts).unwrap_err().to_string()
    }

    #[test]
    fn a_plan_is_made_of_keys_in_slot_order() {
        let keys = vec![key(0, 9), key(0, 1), key(7, 5), key(4095, 0)];
        let plan = TablePlan::checked(TABLE, keys.clone(), Some(&[1, 4, 2, 1])).unwrap();
        assert_eq!((plan.table, &plan.keys), (TABLE, &keys));
        assert_eq!(plan.slots, [(0, 0), (7, 2), (4095, 3)]);
        assert_eq!(plan.occurrences.offsets, [0, 1, 5, 7, 8]);
        let plan = TablePlan::checked(TABLE, keys, None).unwrap();
        assert!(plan.occurrences.offsets.is_empty());
        let empty = TablePlan::checked(TABLE, Vec::new(), Some(&[])).unwrap();
        assert!(empty.slots.is_empty() && empty.occurrences.offsets == [0]);
    }

    #[test]
    fn wrong_keys_and_counts_are_refused_by_name() {
        let error = refusal(&[key(0, 1), key(5, 1), key(4, 7)], None);
        assert!(error.contains("table 3") && error.contains("key 2 (0x0040000000000007)"));
        let error = refusal(&[key(5, 2), key(5, 1), key(5, 2)], None);
        assert!(error.contains("0x0050000000000002") && error.contains("twice"), "{error}");
        // The second run of a slot is refused even if the two runs share no key.
        assert!(refusal(&[key(5, 2), key(6, 1), key(5, 3)], None).contains("order"));
        let keys = [key(1, 1), key(2, 2)];
        assert!(refusal(&keys, Some(&[1])).contains("1 numbers of occurrences"));
        let error = refusal(&keys, Some(&[1, 0]));
        assert!(
            error.contains("0x0020000000000002") && error.contains(" 0 occurrences"),
            "{error}"
        );
        assert!(refusal(&keys, Some(&[u32::MAX, 1])).contains("32 bits"));
        assert!(TablePlan::checked(TABLE, keys.to_vec(), Some(&[u32::MAX - 1, 1])).is_ok());
    }

    #[test]
    fn a_table_occurs_once_in_a_plan() {
        let table = |number| TablePlan::checked(TableId(number), vec![key(1, 1)], None).unwrap();
        let plan = LookupPlan::checked(8, vec![table(4), table(0)]).unwrap();
        assert_eq!((plan.rows, plan.tables.len()), (8, 2));
        let error = LookupPlan::checked(8, vec![table(4), table(0), table(4)]).unwrap_err();
        assert!(error.to_string().contains("table 4"), "{error}");
    }

    proptest! {
        #[test]
        fn exactly_the_sorted_keys_without_repeats_are_taken(
            keys in prop::collection::vec((0u64..6, 0u64..40), 0..40),
            is_sorted in any::<bool>(),
        ) {
            let mut keys: Vec<FeatureKey> =
                keys.into_iter().map(|(slot, low)| key(slot * 800, low)).collect();
            if is_sorted {
                keys.sort_by_key(|key| key.slot());
            }
            let mut unique = keys.clone();
            unique.sort_unstable();
            unique.dedup();
            let fits = keys.is_sorted_by_key(|key| key.slot()) && unique.len() == keys.len();
            let counts: Vec<u32> = (1..=keys.len() as u32).collect();
            match TablePlan::checked(TABLE, keys.clone(), Some(&counts)) {
                Err(_) => prop_assert!(!fits),
                Ok(plan) => {
                    prop_assert!(fits);
                    let ends = plan.slots.iter().skip(1).map(|&(_, start)| start as usize);
                    let ends = ends.chain([keys.len()]);
                    for (&(slot, start), end) in plan.slots.iter().zip(ends) {
                        let run = &plan.keys[start as usize..end];
                        prop_assert!(!run.is_empty());
                        prop_assert!(run.iter().all(|key| key.slot() == usize::from(slot)));
                    }
                    let found: Vec<u32> =
                        plan.occurrences.offsets.windows(2).map(|pair| pair[1] - pair[0]).collect();
                    prop_assert_eq!(found, counts);
                }
            }
        }
    }
}
