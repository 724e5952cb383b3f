//! The notes that `init` prints beside the job file.

use zillion_feature::DateOrder;

use super::{Draft, label};

/// Prints the notes that are not in the job file. `examined` are the rows from which the job was
/// guessed, and `notes` say how the file is read.
pub(super) fn print(draft: &Draft, examined: &str, notes: &[String]) {
    eprintln!("examined {examined}; label `{}`", draft.label.name);
    label::print_notes(&draft.label);
    let others = &draft.preview.guess.other_labels;
    if !others.is_empty() {
        eprintln!(
            "note: the label was guessed; `{}` hold 0 and 1 too: --label COLUMN chooses. What is known \
             only after the row is no feature",
            others.join("`, `")
        );
    }
    for note in notes {
        eprintln!("note: {note}");
    }
    for (column, why) in &draft.left {
        eprintln!("left out `{column}`: {why}");
    }
}

/// Prints by what the rows were split, and the order of day and month in which their times were
/// read.
pub(super) fn print_split(draft: &Draft) {
    let guess = &draft.preview.guess;
    match (&guess.event_time, &guess.group) {
        (Some(time), _) => {
            eprintln!("split by time (`{}`): the latest rows are the test", time.name)
        }
        (None, Some(group)) => eprintln!("split by `{group}`: its rows are in one part"),
        (None, None) => eprintln!("split at random, because no column has the time of a row"),
    }
    let Some(time) = &guess.event_time else { return };
    let Some((order, why)) = &time.date_order else { return };
    if time.is_order_certain {
        return;
    }
    let (own, other) = match order {
        DateOrder::DayFirst => ("the day first", "month_first"),
        DateOrder::MonthFirst => ("the month first", "day_first"),
    };
    eprintln!(
        "note: dates of `{}` are read with {own}: {why}. If that is wrong, split again with \
         `zillion data split FILE --by-time {} --date-order {other} --out FOLDER`, and set \
         event_date_order",
        time.name, time.name
    );
}
