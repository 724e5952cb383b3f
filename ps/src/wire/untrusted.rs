//! The reading of messages of unknown origin, for fuzzing.

use zillion_embedding::LentRows;
use zillion_feature::{FeatureKey, LookupPlan, Occurrences, RowBuffer, TableId, TablePlan, Use};
use zillion_rows::TableLayout;

use super::{
    AdoptRows, BeginCheckpoint, Committed, HEADER_BYTES, Header, Hello, JoinRun, Leave, LentPart,
    Op, OpenRun, Prefill, ReadLayer, Reader, RestoreTables, Ticket, WireError, WireResult,
    WriteBase, WriteLayer, Writer, read_json, read_lent, read_plan, take_gradients,
    write_gradients, write_json, write_lent, write_plan,
};

/// The largest body of the messages that are read.
const MOST: u64 = 1 << 28;

/// Reads the body of a message with this operation, as a server reads it.
///
/// # Errors
/// Returns an error if the operation is unknown or the body is not one of its messages.
pub fn read_message(operation: u16, body: &[u8], layouts: &[TableLayout]) -> Result<(), WireError> {
    let op = Op::of_number(operation)
        .ok_or_else(|| WireError::new(format!("the operation {operation} is unknown")))?;
    if let Some(head) = body.first_chunk::<HEADER_BYTES>() {
        // Any bytes can also be the beginning of a connection.
        let _ = Header::read(head, MOST);
    }
    let mut reader = Reader::new(body);
    match op {
        Op::Hello => read_json::<Hello>(body).map(drop),
        Op::Open => read_json::<OpenRun>(body).map(drop),
        Op::Join => read_json::<JoinRun>(body).map(drop),
        Op::Prefill => read_json::<Prefill>(body).map(drop),
        Op::Adopt => read_json::<AdoptRows>(body).map(drop),
        Op::BeginCheckpoint => read_json::<BeginCheckpoint>(body).map(drop),
        Op::Restore => read_json::<RestoreTables>(body).map(drop),
        Op::PollCheckpoint | Op::FinishCheckpoint | Op::AbandonCheckpoint => {
            read_json::<Ticket>(body).map(drop)
        }
        Op::Committed => read_json::<Committed>(body).map(drop),
        Op::Close if !body.is_empty() => read_json::<Leave>(body).map(drop),
        Op::WriteLayer => read_json::<WriteLayer>(body).map(drop),
        Op::ReadLayer => read_json::<ReadLayer>(body).map(drop),
        Op::WriteBase => read_json::<WriteBase>(body).map(drop),
        Op::Announce => {
            reader.u64()?;
            read_plan(&mut reader, layouts.len())?;
            reader.end()
        }
        Op::Lookup => {
            read_plan(&mut reader, layouts.len())?;
            reader.end()
        }
        Op::Take => {
            read_lent(&mut reader, &vec![0; layouts.len()])?;
            reader.end()
        }
        Op::TakeTable => {
            reader.u16()?;
            reader.u32()?;
            reader.end()
        }
        Op::GiveBack => {
            read_lent(&mut reader, &sample_words(layouts))?;
            reader.end()
        }
        Op::Push => read_push(reader, layouts),
        Op::Exchange => {
            reader.u64()?;
            let floats = reader.u32()? as usize;
            reader.f32s(floats, &mut Vec::new())?;
            reader.blob()?;
            reader.end()
        }
        _ => Ok(()),
    }
}

/// Returns the numbers of words of lent rows in messages of unknown origin: the weights, and the
/// metadata of a row without optimizer state.
fn sample_words(layouts: &[TableLayout]) -> Vec<usize> {
    layouts.iter().map(|layout| layout.stride + 4).collect()
}

fn read_push(mut reader: Reader<'_>, layouts: &[TableLayout]) -> WireResult<()> {
    reader.f32()?;
    reader.bool()?;
    reader.u64()?;
    if !reader.bool()? {
        return Ok(());
    }
    let plan = read_plan(&mut reader, layouts.len())?;
    take_gradients(&mut reader, &plan, layouts, &mut RowBuffer::default())?;
    reader.end()
}

/// Returns messages as a client sends them, each with the number of its operation. The tables have
/// the layouts `layouts`.
pub fn sample_messages(layouts: &[TableLayout]) -> Vec<(u16, Vec<u8>)> {
    let keys = [3u64, 9, 5 << 52, u64::MAX].map(FeatureKey).to_vec();
    let table = |(index, _): (usize, &TableLayout)| TablePlan {
        table: TableId(index as u16),
        keys: keys.clone(),
        slots: vec![(0, 0), (5, 2), (4095, 3)],
        occurrences: Occurrences { offsets: vec![0, 1, 3, 4, 9], positions: Vec::new() },
    };
    let tables = layouts.iter().enumerate().map(table).collect();
    let plan = LookupPlan { rows: 7, tables, columns: Vec::new() };
    let ranges: Vec<_> = plan.tables.iter().map(|table| 0..table.keys.len()).collect();
    let mut gradients = RowBuffer::default();
    gradients.reshape(layouts.iter().map(|layout| (keys.len(), layout.stride)));
    for rows in &mut gradients.tables {
        rows.uses = Some(vec![Use { shows: 1.0, clicks: 0.5 }; keys.len()]);
    }
    let push = |body: &mut Vec<u8>, are_bf16: bool| {
        let mut out = Writer(body);
        out.f32(1.0);
        out.u8(0);
        out.u64(0);
        out.u8(1);
        write_plan(body, &plan, &ranges);
        write_gradients(body, &plan, &ranges, layouts, (&gradients, are_bf16));
    };
    let message = |op: Op, fill: &dyn Fn(&mut Vec<u8>)| {
        let mut body = Vec::new();
        fill(&mut body);
        (op.number(), body)
    };
    let hello = Hello {
        wire: super::WIRE_VERSION,
        program: "1.2.3".to_owned(),
        run: Some("runs/a".to_owned()),
        trainer: 1,
        token: Some("0123456789abcdef".to_owned()),
    };
    let lent = |words: &[usize]| -> Vec<LentRows> {
        let of = |(table, words): (usize, &usize)| LentRows {
            table: TableId(table as u16),
            keys: keys.clone(),
            words: vec![7; keys.len() * words],
        };
        words.iter().enumerate().map(of).collect()
    };
    vec![
        message(Op::Take, &|body| {
            write_lent(body, lent(&vec![0; layouts.len()]).iter().map(LentPart::from));
        }),
        message(Op::TakeTable, &|body| {
            let mut out = Writer(body);
            out.u16(1);
            out.u32(64);
        }),
        message(Op::GiveBack, &|body| {
            write_lent(body, lent(&sample_words(layouts)).iter().map(LentPart::from));
        }),
        message(Op::Hello, &|body| write_json(body, &hello)),
        message(Op::Announce, &|body| {
            Writer(body).u64(4);
            write_plan(body, &plan, &ranges);
        }),
        message(Op::Lookup, &|body| write_plan(body, &plan, &ranges)),
        message(Op::Push, &|body| push(body, false)),
        message(Op::Push, &|body| push(body, true)),
        message(Op::Exchange, &|body| {
            let mut out = Writer(body);
            out.u64(7);
            out.u32(3);
            out.all(&[1.0f32, 2.0, 3.0]);
            out.blob(b"note");
        }),
        message(Op::Committed, &|body| {
            write_json(body, &Committed { request: 1, kept: vec![5, 10] });
        }),
        message(Op::Close, &|body| {
            write_json(body, &Leave { code: 13, cause: "no data".to_owned() });
        }),
        message(Op::BeginCheckpoint, &|body| {
            write_json(body, &BeginCheckpoint { folder: "runs/a".to_owned(), since: Some([1, 2]) });
        }),
    ]
}
