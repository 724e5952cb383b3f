//! The rounding of the gradients of rows before they are pushed (`train.wire = "bf16"`).
//!
//! Trainers round to bf16 stochastically: a gradient becomes one of the two numbers of bf16 next to
//! it, and its mean over many steps stays what it was. The random bits are a function of the job's
//! seed, the step, the number of the batch in the step, the table, the key and the position of the
//! float in its row. So they do not depend on threads, shards and servers, and a trainer of several
//! rounds its batch as one process with `train.accumulate` rounds it.

use zillion_feature::random::{combine, text_seed};
use zillion_feature::{LookupPlan, RowBuffer};
use zillion_nn::StepSeed;
use zillion_rows::dtype::{Bf16, Half, Rounding, RowRounding};

/// Rounds the gradients of the rows of a plan to numbers of bf16. `seed` is that of the batch.
/// Infinities and NaN stay what they are.
pub(super) fn round_gradients(plan: &LookupPlan, gradients: &mut RowBuffer, seed: StepSeed) {
    let all = text_seed(seed.seed, "gradients of rows");
    for (table, rows) in plan.tables.iter().zip(&mut gradients.tables) {
        let of_table = Rounding::new(combine(all, u64::from(table.table.0))).step(seed.step);
        let stride = rows.stride.max(1);
        for (key, row) in table.keys.iter().zip(rows.values.chunks_exact_mut(stride)) {
            round_row(row, of_table.row(key.0));
        }
    }
}

/// Rounds the gradient of one row.
fn round_row(row: &mut [f32], random: RowRounding) {
    for (unit, value) in row.iter_mut().enumerate() {
        let rounded = Bf16::widen(Bf16::stochastic(*value, random.unit(unit as u32)));
        // The rounding of weights makes an infinity the largest number.
        *value = if value.is_infinite() { *value } else { rounded };
    }
}

#[cfg(test)]
mod tests {
    use zillion_feature::{FeatureKey, Occurrences, TableId, TablePlan};

    use super::*;

    const SEED: StepSeed = StepSeed { seed: 5, step: 7 };

    fn plan(tables: &[(u16, &[u64])]) -> LookupPlan {
        let table = |&(table, keys): &(u16, &[u64])| TablePlan {
            table: TableId(table),
            keys: keys.iter().copied().map(FeatureKey).collect(),
            slots: Vec::new(),
            occurrences: Occurrences { offsets: Vec::new(), positions: Vec::new() },
        };
        LookupPlan { rows: 1, tables: tables.iter().map(table).collect(), columns: Vec::new() }
    }

    /// Returns the rounded gradients of the keys of the tables, whose floats all have one value.
    fn round(tables: &[(u16, &[u64])], stride: usize, value: f32, seed: StepSeed) -> Vec<Vec<u32>> {
        let mut gradients = RowBuffer::default();
        gradients.reshape(tables.iter().map(|(_, keys)| (keys.len(), stride)));
        gradients.tables.iter_mut().for_each(|rows| rows.values.fill(value));
        round_gradients(&plan(tables), &mut gradients, seed);
        let bits = |values: &Vec<f32>| values.iter().map(|value| value.to_bits()).collect();
        gradients.tables.iter().map(|rows| bits(&rows.values)).collect()
    }

    #[test]
    fn the_mean_of_rounded_gradients_is_the_gradient() {
        let keys: Vec<u64> = (0..20_000).collect();
        for value in [0.1f32, -3.7e-5, 1.003, 2.5e-39, -1e30] {
            let below = f32::from_bits(value.to_bits() & 0xffff_0000);
            let above = f32::from_bits(below.to_bits() + 0x1_0000);
            let gap = f64::from(above) - f64::from(below);
            let share = (f64::from(value) - f64::from(below)) / gap;
            assert!(share > 0.0 && share < 1.0, "{value} is a number of bf16");
            let rounded = &round(&[(0, &keys)], 4, value, SEED)[0];
            let is_neighbour = |&&bits: &&u32| [below.to_bits(), above.to_bits()].contains(&bits);
            assert!(rounded.iter().all(|bits| is_neighbour(&bits)), "{value}");
            let count = rounded.len() as f64;
            let up = rounded.iter().filter(|&&bits| bits == above.to_bits()).count() as f64;
            let error = (share * (1.0 - share) / count).sqrt();
            assert!((up / count - share).abs() < 4.0 * error, "{value}: {up} of {count}, {share}");
        }
    }

    #[test]
    fn rounding_is_a_function_of_the_seed_the_step_the_table_the_key_and_the_position() {
        let keys: Vec<u64> = (1..200).collect();
        let all = round(&[(0, &keys), (1, &keys)], 4, 0.1, SEED);
        // The other keys and tables of a plan have no effect.
        let part = round(&[(1, &keys[50..])], 4, 0.1, SEED);
        assert_eq!(part[0], all[1][50 * 4..]);
        assert_ne!(all[0], all[1]);
        let other = StepSeed { step: 8, ..SEED };
        assert_ne!(round(&[(0, &keys)], 4, 0.1, other)[0], all[0]);
        let other = StepSeed { seed: 6, ..SEED };
        assert_ne!(round(&[(0, &keys)], 4, 0.1, other)[0], all[0]);
        let rows: Vec<&[u32]> = all[0].chunks_exact(4).collect();
        assert!(rows.iter().any(|row| row != &rows[0]), "keys have no effect");
        assert!(rows.iter().any(|row| row.iter().any(|bits| bits != &row[0])));
    }

    #[test]
    fn numbers_of_bf16_and_those_that_are_not_finite_stay() {
        for value in [0.0, -0.0, 1.5, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(1 << 16)] {
            assert_eq!(round(&[(0, &[3])], 1, value, SEED), [[value.to_bits()]], "{value}");
        }
        for bits in [f32::NAN.to_bits(), 0x7f80_0001, 0xff80_0001] {
            let rounded = round(&[(0, &[3])], 1, f32::from_bits(bits), SEED)[0][0];
            assert!(f32::from_bits(rounded).is_nan() && rounded & 0xffff == 0, "{rounded:x}");
        }
        // A finite gradient does not become an infinity.
        let largest = round(&[(0, &[3, 4, 5, 6])], 4, f32::MAX, SEED);
        assert!(largest[0].iter().all(|&bits| bits == Bf16::MAX.to_bits()), "{largest:x?}");
    }
}
