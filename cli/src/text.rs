//! The formatting of numbers, counts and tables as text.

/// The width of the longest bar of a histogram, in characters.
const BAR: f64 = 40.0;

/// Formats a number with commas between groups of three digits.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of bytes with a suitable unit.
pub(crate) fn bytes(n: u64) -> String {
    let n = n as f64;
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = units.iter().enumerate().rev().find(|(i, _)| n >= 1024f64.powi(*i as i32));
    let (power, unit) = step.unwrap_or((0, &"B"));
    let digits = usize::from(power > 0);
    format!("{:.digits$} {unit}", n / 1024f64.powi(power as i32))
}

/// Formats a share as a percentage.
pub(crate) fn percent(share: f64) -> String {
    match share {
        0.0 => "-".to_owned(),
        s if s < 0.0005 => "<0.1 %".to_owned(),
        s => format!("{:.1} %", 100.0 * s),
    }
}

/// Formats lines of cells as aligned columns, with heads above them if there are any. The first
/// `left` columns are aligned to the left.
pub(crate) fn table(
    heads: &[&str],
    lines: impl IntoIterator<Item = Vec<String>>,
    left: usize,
) -> String {
    let heads = heads.iter().map(|&head| head.to_owned()).collect::<Vec<_>>();
    let mut rows: Vec<Vec<String>> = lines.into_iter().collect();
    if !heads.is_empty() {
        rows.insert(0, heads);
    }
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| {
        rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            let space = " ".repeat(widths[at] - cell.chars().count());
            // The last column is aligned to the left. The spaces after it are removed below.
            let flush_left = at < left || at + 1 == columns;
            line.push_str(&if flush_left {
                format!("{cell}{space}")
            } else {
                format!("{space}{cell}")
            });
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Formats the bins of a histogram as bars of characters. Each bin has its range and its number of
/// rows.
pub(crate) fn bar_chart(indent: &str, bins: impl Iterator<Item = (String, u64)>) -> String {
    let bins: Vec<(String, u64)> = bins.collect();
    let most = bins.iter().map(|(_, rows)| *rows).max().unwrap_or(1).max(1) as f64;
    let all = bins.iter().map(|(_, rows)| rows).sum::<u64>().max(1) as f64;
    let line = |(range, rows): (String, u64)| {
        let bar = "#".repeat((rows as f64 / most * BAR).ceil() as usize);
        vec![format!("{indent}{range}"), grouped(rows), percent(rows as f64 / all), bar]
    };
    table(&[], bins.into_iter().map(line), 0)
}

/// Formats a number with this many digits, or a mark if it is absent.
pub(crate) fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0, 1023, 1536, 3 << 30].map(bytes), ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]);
        assert_eq!([0.0, 0.0001, 0.25].map(percent), ["-", "<0.1 %", "25.0 %"]);
        let rows = [vec!["a".into(), "1".into(), "x".into()], vec!["bb".into(), "10".into()]];
        assert_eq!(table(&[], rows, 1), "a    1  x\nbb  10\n");
    }
}
