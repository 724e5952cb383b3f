//! Tests of calls that tables must refuse, and of the error messages.

use zillion_feature::{RowBuffer, Step, TableId};

use crate::testing::fixtures::*;
use crate::{Error, TableSet, Update};
use zillion_rows::OptimizerSpec;
use zillion_rows::conformance::plan_of;

fn set(dense: bool, cap: Option<u64>) -> TableSet {
    let mut spec = table("ids", dense, vec![segment("v", 4, OptimizerSpec::Sgd { lr: 0.1 }, 0.0)]);
    spec.max_rows = cap;
    TableSet::new(vec![spec], shards(3)).unwrap()
}

#[test]
fn a_vocabulary_beyond_the_cap_is_refused_before_anything_is_added() {
    let workers = workers(1);
    let mut set = set(true, Some(10));
    set.prefill(&workers, TableId(0), &sorted_keys(0..8)).unwrap();
    let error = set.prefill(&workers, TableId(0), &sorted_keys(0..11)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "table `ids`: the vocabulary has 11 rows, but the limit of the table is 10; raise `max_rows`, or make the \
         table dynamic (`dense = false`)"
    );
    assert_eq!(set.rows(TableId(0)), 8);
    // Keys that have a row already are not counted again.
    assert_eq!(set.prefill(&workers, TableId(0), &sorted_keys(0..10)).unwrap(), 2);
}

#[test]
fn a_vocabulary_is_sorted_unique_and_for_dense_tables() {
    let workers = workers(1);
    let mut keys = sorted_keys(0..5);
    keys[3] = keys[2];
    let error = set(true, None).prefill(&workers, TableId(0), &keys).unwrap_err();
    assert!(matches!(error, Error::Vocabulary { index: 3, .. }), "{error}");
    let error = set(false, None).prefill(&workers, TableId(0), &[]).unwrap_err();
    assert!(error.to_string().contains("set `dense = true`"), "{error}");
    let error = set(true, None).prefill(&workers, TableId(1), &[]).unwrap_err();
    assert!(error.to_string().contains("table `1`"), "{error}");
}

#[test]
fn plans_and_gradients_that_do_not_fit_are_refused() {
    let workers = workers(1);
    let mut set = set(false, None);
    let mut rows = RowBuffer::default();
    let plan = plan_of(&[vec![key(1)], vec![key(2)]]);
    assert!(set.pull(&workers, &plan, false, &mut rows).is_err());
    let plan = plan_of(&[vec![key(1), key(2)]]);
    set.pull(&workers, &plan, false, &mut rows).unwrap();
    rows.tables[0].values.pop();
    let error = set.push(&workers, &plan, &rows, update(1, 1.0)).unwrap_err().to_string();
    assert_eq!(
        error,
        "table `ids`: 2 keys with a stride of 4 floats need 8 floats of gradients, but 7 floats \
         with a stride of 4 were given; give one row for each key"
    );
    rows.tables.clear();
    assert!(set.push(&workers, &plan, &rows, update(1, 1.0)).is_err());
    assert_eq!(set.rows(TableId(0)), 0);
}

#[test]
fn steps_are_counted_from_one() {
    let workers = workers(1);
    let mut set = set(false, None);
    let plan = plan_of(&[vec![]]);
    let rows = gradients(&set, &plan, 1);
    for step in [0, u64::MAX] {
        let update = Update { step: Step(step), ..update(1, 1.0) };
        assert!(set.push(&workers, &plan, &rows, update).is_err());
    }
}

#[test]
fn two_tables_of_one_name_are_refused() {
    let spec = || table("ids", false, vec![segment("v", 4, OptimizerSpec::Sgd { lr: 0.1 }, 0.0)]);
    let error = TableSet::new(vec![spec(), spec()], shards(1)).unwrap_err();
    assert_eq!(error.to_string(), "`tables.ids`: two tables have this name; rename one of them");
}
