//! The output of `zillion predict`, which has one line of scores for each row.

use std::io::{self, Write};

use anyhow::{Context, Result, anyhow};
use zillion_feature::LabelKind;

use super::kept_columns::{self, KeptColumns};

/// A writer of scores. Every row of the data has a line, even a row without a score. A line
/// consists of tab-separated columns or is a JSON object. In a JSON object, the values of the first
/// task have plain names. If there are several tasks, the values of all tasks follow under the
/// names of the tasks.
pub(super) struct ScoreLines<W> {
    out: W,
    json: bool,
    /// The names of the tasks and the kinds of their labels. The list is empty for a retrieval
    /// model without labels, because its score predicts none.
    tasks: Vec<(String, LabelKind)>,
    /// The columns that are copied beside the scores, or `None` if there are none.
    kept: Option<KeptColumns>,
    /// The number of rows of the data that were written so far.
    row: u64,
    /// The number of rows of the data that are written.
    limit: u64,
}

impl<W: Write> ScoreLines<W> {
    /// Creates a writer. Also writes the names of the columns, unless the lines are JSON.
    pub(super) fn new(
        mut out: W,
        json: bool,
        tasks: Vec<(String, LabelKind)>,
        kept: Option<KeptColumns>,
    ) -> io::Result<Self> {
        if !json {
            let header = header(&tasks).join("\t");
            for name in kept.iter().flat_map(KeptColumns::names) {
                write!(out, "{name}\t")?;
            }
            writeln!(out, "{header}")?;
        }
        Ok(Self { out, json, tasks, kept, row: 0, limit: u64::MAX })
    }

    /// Limits the output to the first rows of the data, if `rows` is a number.
    pub(super) fn only(self, rows: Option<u64>) -> Self {
        Self { limit: rows.unwrap_or(self.limit), ..self }
    }

    /// Returns the number of rows that are still to be written.
    pub(super) fn left(&self) -> usize {
        usize::try_from(self.limit - self.row).unwrap_or(usize::MAX)
    }

    /// Writes the scores of the next rows, as far as they are wanted. A rejected row gets an empty
    /// line.
    pub(super) fn write(&mut self, logits: &[&[f32]], rejected: &[u64]) -> io::Result<()> {
        let mut rejected = rejected.iter().peekable();
        let rows = logits.first().map_or(0, |first| first.len());
        for at in 0..rows {
            while self.left() > 0 && rejected.next_if(|&&row| row == self.row).is_some() {
                self.write_rejected()?;
            }
            if self.left() == 0 {
                return Ok(());
            }
            let row: Vec<f32> = logits.iter().map(|logits| logits[at]).collect();
            self.write_row(&row)?;
        }
        let left = self.left();
        rejected.take(left).try_for_each(|_| self.write_rejected())
    }

    /// Begins the line of the next row: in JSON with the number of the row, and with the copies of
    /// its kept columns.
    fn begin_row(&mut self) -> io::Result<()> {
        let Self { out, json, kept, row, .. } = self;
        // A row whose kept columns cannot be read begins no line.
        let values = kept.as_mut().map(KeptColumns::next_row).transpose()?;
        if *json {
            write!(out, r#"{{"row":{row}"#)?;
        }
        *row += 1;
        let (Some(kept), Some(values)) = (kept, values) else { return Ok(()) };
        let columns = kept.names().iter().zip(&values);
        if *json {
            // The columns keep the order in which they were named.
            for (at, (name, value)) in columns.enumerate() {
                let start = if at == 0 { r#","kept":{"# } else { "," };
                let name = serde_json::to_string(name)?;
                write!(out, "{start}{name}:{}", kept_columns::json(value))?;
            }
            return write!(out, "}}");
        }
        let cells = columns.map(|(name, value)| kept_columns::cell(name, value));
        let cells: Vec<String> = cells.collect::<io::Result<_>>()?;
        cells.iter().try_for_each(|cell| write!(out, "{cell}\t"))
    }

    fn write_row(&mut self, logits: &[f32]) -> io::Result<()> {
        self.begin_row()?;
        let Self { out, json, tasks, .. } = self;
        if tasks.is_empty() {
            let score = logits[0];
            return match *json {
                true => writeln!(out, r#","score":{score}}}"#),
                false => writeln!(out, "{score}"),
            };
        }
        if !*json {
            let predictions = tasks.iter().zip(logits);
            let texts: Vec<String> =
                predictions.map(|((_, kind), &z)| kind.predict_exactly(z).to_string()).collect();
            return writeln!(out, "{}", texts.join("\t"));
        }
        let figures = |z: f32, kind: LabelKind| {
            let (score, prediction) = names_of(kind);
            format!(r#""{score}":{z},"{prediction}":{}"#, json_number(kind.predict_exactly(z)))
        };
        if tasks[0].1 == LabelKind::Class {
            write!(out, r#","probabilities":{{"#)?;
            for (index, ((task, kind), &z)) in tasks.iter().zip(logits).enumerate() {
                let comma = if index == 0 { "" } else { "," };
                let class = serde_json::to_string(class_of(task))?;
                write!(out, "{comma}{class}:{}", json_number(kind.predict_exactly(z)))?;
            }
            let best = best_class(logits).map(|best| class_of(&tasks[best].0));
            return writeln!(out, r#"}},"class":{}}}"#, serde_json::to_string(&best)?);
        }
        write!(out, ",{}", figures(logits[0], tasks[0].1))?;
        if tasks.len() > 1 {
            for (index, ((task, kind), &z)) in tasks.iter().zip(logits).enumerate() {
                let start = if index == 0 { r#","tasks":{"# } else { "," };
                let task = serde_json::to_string(task)?;
                write!(out, "{start}{task}:{{{}}}", figures(z, *kind))?;
            }
            write!(out, "}}")?;
        }
        writeln!(out, "}}")
    }

    /// Flushes the output and returns whether it is complete. It is not an error if the reader has
    /// closed the pipe (`head`).
    pub(super) fn finish(mut self, failed: Option<io::Error>) -> Result<bool> {
        match failed.map_or(self.out.flush(), Err) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            // A kept column cannot be read or written. The error names it.
            Err(e) if e.kind() == io::ErrorKind::Other && e.get_ref().is_some() => {
                Err(anyhow!(e.into_inner().map_or(String::new(), |inner| inner.to_string())))
            }
            other => other.map(|()| true).context("cannot write the scores"),
        }
    }

    fn write_rejected(&mut self) -> io::Result<()> {
        self.begin_row()?;
        match (self.json, self.tasks.first()) {
            (true, None) => writeln!(self.out, r#","score":null}}"#),
            (true, Some((_, LabelKind::Class))) => {
                writeln!(self.out, r#","probabilities":null,"class":null}}"#)
            }
            (true, Some((_, kind))) => {
                let (score, prediction) = names_of(*kind);
                writeln!(self.out, r#","{score}":null,"{prediction}":null}}"#)
            }
            (false, _) => writeln!(self.out),
        }
    }
}

/// Returns the names of the columns of scores in lines of cells.
pub(super) fn header(tasks: &[(String, LabelKind)]) -> Vec<&str> {
    match tasks {
        [] => vec!["score"],
        tasks => tasks.iter().map(|(name, _)| name.as_str()).collect(),
    }
}

/// Returns the name of a class without the name of its label.
fn class_of(task: &str) -> &str {
    task.split_once('=').map_or(task, |(_, class)| class)
}

/// Returns the index of the largest score, the first of equal ones.
fn best_class(scores: &[f32]) -> Option<usize> {
    (0..scores.len()).rev().max_by(|&a, &b| scores[a].total_cmp(&scores[b]))
}

/// Returns the names of a score and of its prediction in a JSON object.
fn names_of(kind: LabelKind) -> (&'static str, &'static str) {
    match kind {
        LabelKind::Binary => ("logit", "probability"),
        LabelKind::Class => ("log_probability", "probability"),
        LabelKind::Number | LabelKind::Count => ("score", "prediction"),
    }
}

/// Returns a number in JSON, which has no form for a number that is not finite.
fn json_number(number: f64) -> String {
    if number.is_finite() { number.to_string() } else { "null".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(json: bool, tasks: &[&str], logits: &[&[f32]], rejected: &[u64]) -> String {
        let kinds = [
            ("sales", LabelKind::Count),
            ("price", LabelKind::Number),
            ("t=a", LabelKind::Class),
            ("t=b", LabelKind::Class),
        ];
        let kind = |task: &str| kinds.iter().find(|(name, _)| *name == task).map(|(_, kind)| *kind);
        let tasks = tasks.iter().map(|&task| (task.to_owned(), kind(task).unwrap_or_default()));
        let tasks = tasks.collect();
        let mut out = Vec::new();
        let mut lines = ScoreLines::new(&mut out, json, tasks, None).unwrap();
        lines.write(logits, rejected).unwrap();
        assert!(lines.finish(None).unwrap());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_row_is_a_line_and_a_rejected_row_an_empty_one() {
        assert_eq!(lines(false, &["click"], &[&[0.0, 0.0]], &[1]), "click\n0.5\n\n0.5\n");
        assert_eq!(lines(false, &[], &[&[2.5]], &[]), "score\n2.5\n");
        assert_eq!(
            lines(false, &["sales", "price"], &[&[0.0], &[-2.5]], &[]),
            "sales\tprice\n1\t-2.5\n"
        );
        let certain: [&[f32]; 2] = [&[-0.0], &[f32::NEG_INFINITY]];
        assert_eq!(lines(false, &["t=a", "t=b"], &certain, &[]), "t=a\tt=b\n1\t0\n");
        let text = lines(true, &["t=a", "t=b"], &certain, &[0]);
        assert_eq!(
            text,
            "{\"row\":0,\"probabilities\":null,\"class\":null}\n\
             {\"row\":1,\"probabilities\":{\"a\":1,\"b\":0},\"class\":\"a\"}\n"
        );
        assert_eq!(
            lines(true, &["price"], &[&[2.5]], &[0]),
            "{\"row\":0,\"score\":null,\"prediction\":null}\n\
             {\"row\":1,\"score\":2.5,\"prediction\":2.5}\n"
        );
        assert_eq!(
            lines(true, &[], &[&[2.5]], &[0]),
            "{\"row\":0,\"score\":null}\n{\"row\":1,\"score\":2.5}\n"
        );
        assert_eq!(
            lines(true, &["a", "b"], &[&[0.0], &[0.0]], &[]),
            "{\"row\":0,\"logit\":0,\"probability\":0.5,\"tasks\":{\"a\":{\"logit\":0,\"probability\":0.5},\
             \"b\":{\"logit\":0,\"probability\":0.5}}}\n"
        );
    }

    #[test]
    fn only_the_wanted_rows_have_lines() {
        let written = |rows: u64| {
            let tasks = vec![("click".to_owned(), LabelKind::Binary)];
            let mut out = Vec::new();
            let lines = ScoreLines::new(&mut out, false, tasks, None).unwrap();
            let mut lines = lines.only(Some(rows));
            // The second and the fourth row are bad.
            lines.write(&[&[0.0, 0.0]], &[1, 3]).unwrap();
            let left = lines.left();
            assert!(lines.finish(None).unwrap());
            (String::from_utf8(out).unwrap(), left)
        };
        for (rows, text, left) in [
            (1, "0.5\n", 0),
            (2, "0.5\n\n", 0),
            (3, "0.5\n\n0.5\n", 0),
            (4, "0.5\n\n0.5\n\n", 0),
            (6, "0.5\n\n0.5\n\n", 2),
        ] {
            assert_eq!(written(rows), (format!("click\n{text}"), left), "{rows}");
        }
    }

    #[test]
    fn kept_columns_have_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.csv");
        std::fs::write(&file, "b,click,c\n1,0,x\n2,1,y\n").unwrap();
        let names = ["c", "click", "b"].map(str::to_owned);
        let data = zillion_reader::DataConfig::default();
        let kept = KeptColumns::open(&data, &file, &names, &[]).unwrap();
        let tasks = vec![("click".to_owned(), LabelKind::Binary)];
        let mut out = Vec::new();
        let mut lines = ScoreLines::new(&mut out, true, tasks, kept).unwrap();
        lines.write(&[&[0.0]], &[1]).unwrap();
        assert!(lines.finish(None).unwrap());
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with(r#"{"row":0,"kept":{"c":"x","click":"0","b":"1"},"#), "{text}");
        assert!(text.contains(r#"{"row":1,"kept":{"c":"y","click":"1","b":"2"},"#), "{text}");
    }

    #[test]
    fn a_row_that_cannot_be_kept_begins_no_line() {
        let folder = tempfile::tempdir().unwrap();
        let data = zillion_reader::DataConfig::default();
        for (file, text, json, problem) in [
            ("rows.jsonl", "{\"c\":[1,2]}\n", true, "reads one value in each row"),
            ("rows.jsonl", "{\"c\":\"a\\tb\"}\n", false, "a text with a tab"),
        ] {
            let file = folder.path().join(file);
            std::fs::write(&file, text).unwrap();
            let kept = KeptColumns::open(&data, &file, &["c".to_owned()], &[]).unwrap();
            let mut out = Vec::new();
            let mut lines = ScoreLines::new(&mut out, json, Vec::new(), kept).unwrap();
            let failed = lines.write(&[&[0.5]], &[]).unwrap_err();
            let error = lines.finish(Some(failed)).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
            assert_eq!(String::from_utf8(out).unwrap(), if json { "" } else { "c\tscore\n" });
        }
    }

    #[test]
    fn a_closed_pipe_is_an_early_end_and_a_full_disk_an_error() {
        let lines = || ScoreLines::new(Vec::new(), true, Vec::new(), None).unwrap();
        let failed = |kind: io::ErrorKind| Some(io::Error::from(kind));
        assert!(!lines().finish(failed(io::ErrorKind::BrokenPipe)).unwrap());
        assert!(lines().finish(failed(io::ErrorKind::StorageFull)).is_err());
    }
}
