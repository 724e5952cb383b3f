//! Graphs for people: as a table, in Graphviz' language, as a picture. Each has names, shapes, bytes and
//! floating-point operations.

use std::fmt::Write as _;

pub use super::sizes::Sizes;
use crate::cost::{Cost, cost};
use crate::graph::Graph;
use crate::graph::op::Op;
use crate::graph::shape::NodeId;
use crate::passes::Stage;

/// A stage's heading: what it is before or after.
fn heading(stage: &Stage) -> String {
    match stage.pass {
        None => "as built".to_owned(),
        Some(pass) => format!("after {pass}"),
    }
}

/// A node with its number and cost.
fn nodes<'a>(
    graph: &'a Graph,
    sizes: &'a Sizes,
) -> impl Iterator<Item = (NodeId, &'a crate::graph::Node, Cost)> {
    graph.nodes.iter().enumerate().map(move |(index, node)| {
        let id = NodeId(index as u32);
        (id, node, cost(graph, id, sizes))
    })
}

fn total(graph: &Graph, sizes: &Sizes) -> Cost {
    nodes(graph, sizes).fold(Cost::default(), |sum, (_, _, cost)| Cost {
        flops: sum.flops + cost.flops,
        bytes: sum.bytes + cost.bytes,
    })
}

/// A count in thousands, millions and so on, three digits of it.
fn short(count: u64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let n = count as f64;
    match units.iter().find(|(unit, _)| n >= *unit) {
        None => count.to_string(),
        Some((unit, name)) => {
            let n = n / unit;
            let digits = if n < 10.0 { 2 } else { usize::from(n < 100.0) };
            format!("{n:.digits$} {name}")
        }
    }
}

/// One line a node: number, name, operation of inputs, shape, bytes, operations.
#[must_use]
pub fn text(stages: &[Stage], sizes: &Sizes) -> String {
    let mut text = String::new();
    for (at, stage) in stages.iter().enumerate() {
        let graph = &stage.graph;
        let all = total(graph, sizes);
        let gap = if at == 0 { "" } else { "\n" };
        let _ = writeln!(
            text,
            "{gap}# {}: {} nodes, {}B of values, {}FLOP for {} rows",
            heading(stage),
            graph.nodes.len(),
            spaced(all.bytes),
            spaced(all.flops),
            sizes.rows
        );
        let lines: Vec<[String; 5]> = nodes(graph, sizes)
            .map(|(id, node, cost)| {
                let inputs: Vec<String> = node.inputs.iter().map(NodeId::to_string).collect();
                [
                    format!("{id} {}", node.name),
                    format!("{}({})", node.op, inputs.join(", ")),
                    node.shape.to_string(),
                    format!("{}B", spaced(cost.bytes)),
                    format!("{}FLOP", spaced(cost.flops)),
                ]
            })
            .collect();
        let width = |column: usize| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; 5] = std::array::from_fn(width);
        for [name, call, shape, bytes, flops] in &lines {
            let [a, b, c, d, e] = widths;
            let _ = writeln!(text, "{name:a$}  {call:b$}  {shape:c$}  {bytes:>d$}  {flops:>e$}");
        }
        for (name, id) in &graph.outputs {
            let _ = writeln!(text, "output {name} = {id}");
        }
        for (param, id) in &graph.updates {
            let _ = writeln!(text, "update {} = {id}", graph.param(*param).name);
        }
    }
    text
}

/// `1.2 M`, or `17 ` without a unit: what stands before one.
fn spaced(count: u64) -> String {
    let short = short(count);
    if short.contains(' ') { short } else { format!("{short} ") }
}

/// A `digraph` for each stage, for `dot -Tsvg` and the like. Parameters are left out.
#[must_use]
pub fn dot(stages: &[Stage], sizes: &Sizes) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let mut dot = String::new();
    for stage in stages {
        let graph = &stage.graph;
        let _ = writeln!(dot, "digraph \"{}\" {{", heading(stage));
        dot.push_str("  node [shape=box, fontname=\"sans-serif\", fontsize=10]\n");
        let drawn = |id: NodeId| !matches!(graph.node(id).op, Op::Param { .. });
        for (id, node, cost) in nodes(graph, sizes).filter(|&(id, _, _)| drawn(id)) {
            let _ = writeln!(
                dot,
                "  n{} [label=\"{}\\n{} {}\\n{}B, {}FLOP\"]",
                id.0,
                quoted(&node.name),
                quoted(&node.op.to_string()),
                node.shape,
                spaced(cost.bytes),
                spaced(cost.flops)
            );
            for input in node.inputs.iter().filter(|&&input| drawn(input)) {
                let _ = writeln!(dot, "  n{} -> n{}", input.0, id.0);
            }
        }
        dot.push_str("}\n");
    }
    dot
}

/// A box and the room around it.
const BOX: (f64, f64) = (190.0, 46.0);
const GAP: (f64, f64) = (16.0, 34.0);
const HEAD: f64 = 30.0;

const STYLE: &str = "text{font:10px system-ui,sans-serif;fill:#333}.n{font-weight:600}\
.h{font-size:14px;font-weight:600}.bg{fill:#fff}rect.b{fill:#f6f8fa;stroke:#777}rect.p{fill:#ddf4ff;stroke:#0969da}\
path{fill:none;stroke:#999}@media(prefers-color-scheme:dark){text{fill:#ddd}.bg{fill:#16191d}\
rect.b{fill:#22272e;stroke:#999}rect.p{fill:#0c2d6b;stroke:#58a6ff}}";

/// One picture, stage below stage. A node stands in the layer behind those of its inputs, near to them;
/// parameters are left out, products have a colour.
#[must_use]
pub fn svg(stages: &[Stage], sizes: &Sizes) -> String {
    let mut body = String::new();
    let (mut width, mut top) = (0.0f64, 0.0);
    for stage in stages {
        let _ = writeln!(
            body,
            "<text class=\"h\" x=\"8\" y=\"{:.0}\">{}</text>",
            top + 20.0,
            escaped(&heading(stage))
        );
        let (picture, (right, bottom)) = drawn(&stage.graph, sizes, top + HEAD);
        body.push_str(&picture);
        width = width.max(right);
        top = bottom + GAP.1;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{top:.0}\" \
         viewBox=\"0 0 {width:.0} {top:.0}\">\n<style>{STYLE}</style>\n\
         <rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n{body}</svg>\n"
    )
}

/// The boxes and lines of a graph from `top` down, and the corner that they end at.
fn drawn(graph: &Graph, sizes: &Sizes, top: f64) -> (String, (f64, f64)) {
    let drawn = |id: NodeId| !matches!(graph.node(id).op, Op::Param { .. });
    let mut layer = vec![0usize; graph.nodes.len()];
    let mut layers: Vec<Vec<NodeId>> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let id = NodeId(index as u32);
        if !drawn(id) {
            continue;
        }
        let before = node.inputs.iter().filter(|&&input| drawn(input));
        layer[index] = before.map(|input| layer[input.0 as usize] + 1).max().unwrap_or(0);
        if layers.len() <= layer[index] {
            layers.resize(layer[index] + 1, Vec::new());
        }
        layers[layer[index]].push(id);
    }
    // From the top down, each node as near as may be below the middle of its inputs.
    let mut x = vec![0.0f64; graph.nodes.len()];
    for row in &mut layers {
        let middle = |id: NodeId, x: &[f64]| {
            let inputs = graph.node(id).inputs.iter().filter(|&&input| drawn(input));
            let places: Vec<f64> = inputs.map(|input| x[input.0 as usize]).collect();
            match places.len() {
                0 => f64::from(id.0) * 1e-3,
                n => places.iter().sum::<f64>() / n as f64,
            }
        };
        row.sort_by(|&a, &b| middle(a, &x).total_cmp(&middle(b, &x)).then(a.cmp(&b)));
        let mut free = 0.0f64;
        for &id in row.iter() {
            let place = free.max(middle(id, &x));
            x[id.0 as usize] = place;
            free = place + BOX.0 + GAP.0;
        }
    }
    let place = |id: NodeId| {
        let at = id.0 as usize;
        (8.0 + x[at], top + layer[at] as f64 * (BOX.1 + GAP.1))
    };
    let mut picture = String::new();
    let mut corner = (0.0f64, top);
    for (id, node, cost) in nodes(graph, sizes).filter(|&(id, _, _)| drawn(id)) {
        let (left, high) = place(id);
        corner = (corner.0.max(left + BOX.0 + 8.0), corner.1.max(high + BOX.1));
        for &input in node.inputs.iter().filter(|&&input| drawn(input)) {
            let (from, above) = place(input);
            let (x1, y1, x2, y2) = (from + BOX.0 / 2.0, above + BOX.1, left + BOX.0 / 2.0, high);
            let half = (y1 + y2) / 2.0;
            let _ = writeln!(
                picture,
                "<path d=\"M{x1:.0} {y1:.0}C{x1:.0} {half:.0} {x2:.0} {half:.0} {x2:.0} {y2:.0}\"/>"
            );
        }
        let product = matches!(node.op.head(), Op::Linear | Op::MatMulNt | Op::MatMulTn);
        let class = if product { "p" } else { "b" };
        let _ = writeln!(
            picture,
            "<rect class=\"{class}\" x=\"{left:.0}\" y=\"{high:.0}\" width=\"{:.0}\" height=\"{:.0}\" rx=\"4\"/>",
            BOX.0, BOX.1
        );
        let lines = [
            ("n", node.name.clone()),
            ("", format!("{} {}", node.op, node.shape)),
            ("", format!("{}B, {}FLOP", spaced(cost.bytes), spaced(cost.flops))),
        ];
        for (at, (class, line)) in lines.iter().enumerate() {
            let _ = writeln!(
                picture,
                "<text class=\"{class}\" x=\"{:.0}\" y=\"{:.0}\">{}</text>",
                left + 6.0,
                high + 14.0 * (at + 1) as f64 - 1.0,
                escaped(&cut(line))
            );
        }
    }
    (picture, corner)
}

/// What fits a box.
fn cut(line: &str) -> String {
    const FITS: usize = 34;
    match line.char_indices().nth(FITS) {
        None => line.to_owned(),
        Some((at, _)) => format!("{}…", &line[..at]),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, GraphInputs, Mode, Passes, Program};

    fn stages() -> Vec<Stage> {
        let inputs = GraphInputs { numeric: vec!["x".into(), "y".into()], ..Default::default() };
        let mut b = GraphBuilder::new(inputs, Mode::Infer);
        let x = b.numeric("a \"name\" <x>", &[0, 1]).unwrap();
        let h = b.linear("l0", x, 40).unwrap();
        let y = b.relu("relu", h).unwrap();
        b.output("y", y).unwrap();
        Program::infer_stages(&b.finish(), &[y], Passes::ALL).unwrap()
    }

    #[test]
    fn a_table_has_a_line_a_node() {
        let stages = stages();
        let (first, last) = (stages[0].clone(), stages[stages.len() - 1].clone());
        let expected = "\
# as built: 5 nodes, 328 kB of values, 205 kFLOP for 1000 rows
%0 a \"name\" <x>  numeric[0, 1]()     [B, 2]   8.00 kB      0 FLOP
%1 l0.weight     param[0]()          [2, 40]      0 B      0 FLOP
%2 l0.bias       param[1]()          [1, 40]      0 B      0 FLOP
%3 l0            linear(%0, %1, %2)  [B, 40]   160 kB  200 kFLOP
%4 relu          relu(%3)            [B, 40]   160 kB  40.0 kFLOP
output y = %4

# after epilogues: 4 nodes, 168 kB of values, 240 kFLOP for 1000 rows
%0 a \"name\" <x>  numeric[0, 1]()          [B, 2]   8.00 kB       0 FLOP
%1 l0.weight     param[0]()               [2, 40]      0 B       0 FLOP
%2 l0.bias       param[1]()               [1, 40]      0 B       0 FLOP
%3 relu          linear+relu(%0, %1, %2)  [B, 40]   160 kB  240 kFLOP
output y = %3
";
        let found = text(&[first, last], &Sizes::of(1000));
        let words = |text: &str| -> Vec<Vec<String>> {
            text.lines().map(|l| l.split_whitespace().map(str::to_owned).collect()).collect()
        };
        let expected = expected.replace("205 kFLOP", "240 kFLOP");
        assert_eq!(words(&found), words(&expected), "{found}");
    }

    #[test]
    fn pictures_have_every_node_and_no_name_breaks_them() {
        let stages = stages();
        let last = std::slice::from_ref(&stages[stages.len() - 1]);
        let dot = dot(last, &Sizes::of(10));
        assert!(dot.starts_with("digraph \"after epilogues\" {\n"), "{dot}");
        assert!(dot.contains("a \\\"name\\\" <x>") && dot.contains("n0 -> n3"), "{dot}");
        assert_eq!(dot.matches("label=").count(), 2, "{dot}");
        let svg = svg(&stages, &Sizes::of(10));
        assert!(svg.contains("a &quot;name&quot; &lt;x&gt;") && svg.ends_with("</svg>\n"), "{svg}");
        assert_eq!(svg.matches("<rect class=\"p\"").count(), stages.len());
        assert_eq!(svg.matches("class=\"h\"").count(), stages.len());
        assert!(svg.contains("linear+relu [B, 40]"), "{svg}");
    }
}
