//! Graphs as SVG pictures, from top to bottom.
//!
//! Similar nodes are folded into one box with a count. So the width of a picture does not depend on
//! the number of features, but on the number of different nodes. A row has at most [`ROW`] boxes,
//! and a layer with more boxes continues in the next row. No layout crate is used. The folding
//! leaves only a few dozen boxes, so the layout needs little code.

use std::fmt::Write as _;

use super::fold::{Fold, fold};
use super::{heading, spaced};
use crate::cost::{Cost, cost};
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::sizes::Sizes;
use crate::passes::Stage;

/// The width and height of a box.
const BOX: (f64, f64) = (214.0, 46.0);
/// The horizontal and vertical gap between boxes.
const GAP: (f64, f64) = (16.0, 30.0);
/// The height of a heading.
const HEAD: f64 = 30.0;
/// The space between the boxes and the edge of the picture. Lines that pass several rows are drawn
/// in this space.
const MARGIN: f64 = 28.0;
/// The maximum number of boxes in a row.
const ROW: usize = 6;

const STYLE: &str = "text{font:10px system-ui,sans-serif;fill:#333}.n{font-weight:600}\
.h{font-size:14px;font-weight:600}.bg{fill:#fff}rect.b{fill:#f6f8fa;stroke:#777}rect.p{fill:#ddf4ff;stroke:#0969da}\
path{fill:none;stroke:#888}path.l{stroke:#ccc;stroke-dasharray:3 3}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.bg{fill:#16191d}path.l{stroke:#444}\
rect.b{fill:#22272e;stroke:#999}rect.p{fill:#0c2d6b;stroke:#58a6ff}}";

/// Draws one picture with all stages below each other. A box is drawn below the boxes that it
/// reads, and as close to them as possible. Parameters are left out. Matrix products have a colour.
/// Lines that pass other rows are dashed.
#[must_use]
pub fn svg(stages: &[Stage], sizes: &Sizes) -> String {
    let mut body = String::new();
    let (mut width, mut top) = (0.0f64, 0.0);
    for stage in stages {
        let _ = writeln!(
            body,
            "<text class=\"h\" x=\"8\" y=\"{:.0}\">{}</text>",
            top + 20.0,
            escape(&heading(stage))
        );
        let layout = Layout::new(fold(&stage.graph), top + HEAD);
        layout.draw(&stage.graph, sizes, &mut body);
        width = width.max(layout.width);
        top = layout.bottom + GAP.1;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{top:.0}\" \
         viewBox=\"0 0 {width:.0} {top:.0}\">\n<style>{STYLE}</style>\n\
         <rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n{body}</svg>\n"
    )
}

/// The places of the boxes of one stage.
struct Layout {
    boxes: Vec<Fold>,
    /// The row of each box.
    rows: Vec<usize>,
    /// The upper left corner of each box.
    places: Vec<(f64, f64)>,
    width: f64,
    bottom: f64,
}

impl Layout {
    fn new(boxes: Vec<Fold>, top: f64) -> Self {
        let lines = rows_of(&boxes);
        let widest = lines.iter().map(Vec::len).max().unwrap_or(1).max(1);
        let width = 2.0 * MARGIN + widest as f64 * (BOX.0 + GAP.0) - GAP.0;
        let mut rows = vec![0; boxes.len()];
        let mut places = vec![(0.0, 0.0); boxes.len()];
        for (row, line) in lines.iter().enumerate() {
            let y = top + row as f64 * (BOX.1 + GAP.1);
            // Each box is placed below the middle of its inputs, or as near to this place as
            // possible. The row is filled from left to right, and stays inside the picture.
            let middles: Vec<f64> = line
                .iter()
                .map(|&at| middle(&boxes[at], &places).unwrap_or(width / 2.0) - BOX.0 / 2.0)
                .collect();
            let mut order: Vec<usize> = (0..line.len()).collect();
            order.sort_by(|&a, &b| middles[a].total_cmp(&middles[b]).then(a.cmp(&b)));
            let needed = line.len() as f64 * (BOX.0 + GAP.0) - GAP.0;
            let mean = middles.iter().sum::<f64>() / line.len().max(1) as f64 + BOX.0 / 2.0;
            let left = (mean - needed / 2.0).clamp(MARGIN, (width - MARGIN - needed).max(MARGIN));
            for (slot, &index) in order.iter().enumerate() {
                places[line[index]] = (left + slot as f64 * (BOX.0 + GAP.0), y);
                rows[line[index]] = row;
            }
        }
        let bottom = top + lines.len() as f64 * (BOX.1 + GAP.1) - GAP.1;
        Self { boxes, rows, places, width, bottom }
    }

    fn draw(&self, graph: &Graph, sizes: &Sizes, picture: &mut String) {
        for (at, fold) in self.boxes.iter().enumerate() {
            for &input in &fold.inputs {
                self.draw_line(input, at, picture);
            }
        }
        for (fold, &place) in self.boxes.iter().zip(&self.places) {
            draw_box(graph, sizes, fold, place, picture);
        }
    }

    /// Draws a line between two boxes. A line to the next row is a curve. A longer line runs down
    /// the left margin.
    fn draw_line(&self, from: usize, to: usize, picture: &mut String) {
        let ((left1, top1), (left2, y2)) = (self.places[from], self.places[to]);
        let (x1, y1, x2) = (left1 + BOX.0 / 2.0, top1 + BOX.1, left2 + BOX.0 / 2.0);
        if self.rows[to] == self.rows[from] + 1 {
            let half = (y1 + y2) / 2.0;
            let _ = writeln!(
                picture,
                "<path d=\"M{x1:.0} {y1:.0}C{x1:.0} {half:.0} {x2:.0} {half:.0} {x2:.0} {y2:.0}\"/>"
            );
            return;
        }
        // The lines in the margin are side by side. Each line has its own track while there are
        // enough tracks.
        let lane = 6.0 + (from % 6) as f64 * (MARGIN - 10.0) / 6.0;
        let (out, back) = (y1 + GAP.1 / 3.0, y2 - GAP.1 / 3.0);
        let _ = writeln!(
            picture,
            "<path class=\"l\" d=\"M{x1:.0} {y1:.0}V{out:.0}H{lane:.0}V{back:.0}H{x2:.0}V{y2:.0}\"/>"
        );
    }
}

/// Returns the boxes of each row of the picture. The row of a box follows from its distance from
/// the inputs. A row has at most [`ROW`] boxes.
fn rows_of(boxes: &[Fold]) -> Vec<Vec<usize>> {
    let mut depth = vec![0usize; boxes.len()];
    let mut layers: Vec<Vec<usize>> = Vec::new();
    for (at, fold) in boxes.iter().enumerate() {
        depth[at] = fold.inputs.iter().map(|&input| depth[input] + 1).max().unwrap_or(0);
    }
    // A box without inputs is placed directly above the first box that reads it.
    let mut readers: Vec<Option<usize>> = vec![None; boxes.len()];
    for (at, fold) in boxes.iter().enumerate() {
        for &input in &fold.inputs {
            readers[input] = Some(readers[input].map_or(depth[at], |old| old.min(depth[at])));
        }
    }
    for (at, fold) in boxes.iter().enumerate() {
        if let (true, Some(reader)) = (fold.inputs.is_empty(), readers[at]) {
            depth[at] = reader - 1;
        }
        if layers.len() <= depth[at] {
            layers.resize(depth[at] + 1, Vec::new());
        }
        layers[depth[at]].push(at);
    }
    layers.iter().flat_map(|layer| layer.chunks(ROW)).map(<[usize]>::to_vec).collect()
}

/// Returns the mean horizontal position of the boxes that a box reads, or `None` if it reads none.
fn middle(fold: &Fold, places: &[(f64, f64)]) -> Option<f64> {
    let count = fold.inputs.len();
    let sum: f64 = fold.inputs.iter().map(|&input| places[input].0 + BOX.0 / 2.0).sum();
    (count > 0).then(|| sum / count as f64)
}

fn draw_box(
    graph: &Graph,
    sizes: &Sizes,
    fold: &Fold,
    (left, top): (f64, f64),
    picture: &mut String,
) {
    let Some(&first) = fold.nodes.first() else { return };
    let node = graph.node(first);
    let cost: Cost = fold.nodes.iter().map(|&id| cost(graph, id, sizes)).sum();
    let product = matches!(node.op.head(), Op::Linear | Op::MatMulNt | Op::MatMulTn);
    let class = if product { "p" } else { "b" };
    let _ = writeln!(
        picture,
        "<rect class=\"{class}\" x=\"{left:.0}\" y=\"{top:.0}\" width=\"{:.0}\" height=\"{:.0}\" rx=\"4\"/>",
        BOX.0, BOX.1
    );
    let (name, op) = match fold.nodes.len() {
        1 => (node.name.clone(), node.op.to_string()),
        count => (format!("{count} × {} …", cut(&node.name, 24)), node.op.name().to_owned()),
    };
    let lines = [
        ("n", name),
        ("", format!("{op} {}", node.shape)),
        ("", format!("{}B, {}FLOP", spaced(cost.bytes), spaced(cost.flops))),
    ];
    for (at, (class, line)) in lines.iter().enumerate() {
        let _ = writeln!(
            picture,
            "<text class=\"{class}\" x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            left + 6.0,
            top + 14.0 * (at + 1) as f64 - 1.0,
            escape(&cut(line, 38))
        );
    }
}

/// Returns the first `fits` characters of a line. If the line is longer, a mark at the end shows
/// that it was cut.
fn cut(line: &str, fits: usize) -> String {
    match line.char_indices().nth(fits) {
        None => line.to_owned(),
        Some((at, _)) => format!("{}…", &line[..at]),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
