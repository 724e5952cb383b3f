//! The targets of the crate `ps`: the messages that a parameter server reads.

use zillion_ps::{read_message, sample_messages};
use zillion_rows::{RowType, SegmentLayout, TableLayout};

use crate::harness::Target;

/// All targets of this file.
pub const ALL: [&Target; 1] = [&SERVER_MESSAGES];

/// The reader of a message of a parameter server. The input is the number of the operation in two
/// bytes, and the body.
pub const SERVER_MESSAGES: Target = Target {
    name: "server_messages",
    read: |bytes| {
        let Some((operation, body)) = bytes.split_first_chunk::<2>() else { return false };
        read_message(u16::from_le_bytes(*operation), body, &layouts()).is_ok()
    },
    seeds: || {
        let messages = sample_messages(&layouts()).into_iter();
        messages.map(|(operation, body)| [&operation.to_le_bytes()[..], &body].concat()).collect()
    },
};

/// Returns the layouts of two tables, one of which has padding.
fn layouts() -> Vec<TableLayout> {
    let table = |name: &str, dim: usize| TableLayout {
        name: name.to_owned(),
        stride: dim.next_multiple_of(4),
        segments: vec![SegmentLayout { name: "vector".to_owned(), offset: 0, dim }],
        narrow: None,
        published: RowType::F32,
        hot: None,
    };
    vec![table("user", 5), table("item", 8)]
}
