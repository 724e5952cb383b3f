//! Tests of the decoding of messages.

mod arrow;
mod avro;
mod damage;
mod json;
mod protobuf;

use zillion_feature::{ColumnStatistics, Schema, Statistics};
use zillion_reader::{
    DataConfig, DecodedMessages, MessageDecoder, MessageFormat, Rejection, SideTables,
};

use crate::fixture::schema;

/// A schema with each kind of column that a message may have.
const JOB: &str = "
    [features.user]\nkind='id'\ntype='u64'\n[features.city]\nkind='id'\ntype='string'\n\
    [features.tags]\nkind='ids'\ntype='string'\n[features.past]\nkind='sequence'\nmax_len=2\n\
    [features.price]\nkind='numeric'\ntransform='log1p'\nmissing=0\n\
    [features.height]\nkind='numeric'\ntransform='standardise'\n\
    [features.both]\nkind='cross'\nof=['user','city']\n\
    [labels.click]\n[labels.watch]\nat_least=3\n\
    [columns]\nweight='w'\ngroup='session'\nevent_time='time'\nevent_time_unit='ms'\n";

fn job() -> Schema {
    schema(JOB)
}

fn known() -> Statistics {
    let mut known = Statistics::default();
    let column =
        ColumnStatistics { count: 2, mean: 1.5, std: 0.25, min: 0.0, max: 3.0, boundaries: None };
    known.columns.insert("height".into(), column);
    known
}

fn decoder(format: MessageFormat, config: &DataConfig, schema: &Schema) -> MessageDecoder {
    let sides = SideTables::load(config, schema).unwrap();
    MessageDecoder::new(format, config, schema, &sides, &known()).unwrap()
}

fn decode<M: AsRef<[u8]>>(
    format: MessageFormat,
    schema: &Schema,
    messages: &[M],
) -> DecodedMessages {
    let decoder = decoder(format, &DataConfig::default(), schema);
    decoder.decode(messages.iter().map(AsRef::as_ref)).unwrap()
}

/// Decodes one message, which must be rejected, and returns the reason.
fn rejection(format: MessageFormat, schema: &Schema, message: impl AsRef<[u8]>) -> Rejection {
    let mut decoded = decode(format, schema, &[message]);
    assert_eq!(
        (decoded.batch.rows, decoded.rows.as_slice(), decoded.rejected.len()),
        (0, &[0][..], 1)
    );
    decoded.rejected.remove(0).rejection
}
