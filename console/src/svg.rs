//! Small plots as SVG: rows of panels with labelled axes.
//!
//! A page has colours for a light and a dark style. Text stays text, so that it can be searched and
//! copied. The drawing depends only on the numbers, so the same numbers give the same file.
//!
//! The crate `plotters` was rejected. Its SVG backend writes one fixed colour into each shape, so a
//! page could not adapt to the light or dark style of the browser.

use std::fmt::Write as _;

/// The width of a panel. The next constants are its height, [`HEIGHT`], and the four margins for
/// its axes.
const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 38.0;
const BOTTOM: f64 = 54.0;
/// The height of the heading above each row of panels.
const HEAD: f64 = 30.0;
/// The height of the title above the first row of panels.
const TITLE: f64 = 34.0;
/// The number of colours. If there are more lines, the colours are repeated.
const COLOURS: usize = 6;
/// The name of a line that shows an ideal, which is drawn in grey and dashed.
pub const IDEAL: &str = "ideal";
/// The name of a line that is shown as points alone, without a legend.
pub const POINTS: &str = "";

/// The style sheet of all plots, for a light and a dark page.
pub const STYLE: &str = "\
text{font:11px system-ui,sans-serif;fill:#333}.t{font-size:15px;font-weight:600}.h{font-size:13px;font-weight:600}\
.p{font-weight:600}.bg{fill:#fff}.g{stroke:#ddd;stroke-width:1}.a{stroke:#777;stroke-width:1}\
.l{fill:none;stroke-width:2;stroke-linejoin:round}.l0{stroke:#0969da}.l1{stroke:#bf3989}.l2{stroke:#1a7f37}.l3{stroke:#9a6700}.l4{stroke:#8250df}.l5{stroke:#bc4c00}\
.lr{stroke:#999;stroke-width:1.5;stroke-dasharray:4 4}.mr{fill:#999}\
.m0,.b{fill:#0969da}.m1{fill:#bf3989}.m2{fill:#1a7f37}.m3{fill:#9a6700}.m4{fill:#8250df}.m5{fill:#bc4c00}\
@media(prefers-color-scheme:dark){text{fill:#ddd}.bg{fill:#16191d}.g{stroke:#333}.a{stroke:#999}\
.l0{stroke:#58a6ff}.l1{stroke:#f778ba}.l2{stroke:#56d364}.l3{stroke:#d29922}.l4{stroke:#bc8cff}.l5{stroke:#f0883e}\
.m0,.b{fill:#58a6ff}.m1{fill:#f778ba}.m2{fill:#56d364}.m3{fill:#d29922}.m4{fill:#bc8cff}.m5{fill:#f0883e}}";

/// The scale of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A linear scale that includes 0, so that amounts can be compared by their size.
    Linear,
    /// A linear scale from the smallest to the largest number, for figures that differ little.
    Near,
    /// A logarithmic scale. It shows only numbers above 0, and all other numbers are left out.
    Log,
}

/// The format of the numbers on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Numbers without a unit.
    Number,
    /// Shares, which are written as percentages.
    Percent,
    /// Sizes in bytes, with a prefix.
    Bytes,
}

/// An axis of a panel.
#[derive(Clone, Debug)]
pub struct Axis {
    /// The text beside the axis.
    pub label: String,
    /// The scale of the numbers.
    pub scale: Scale,
    /// The format of the numbers.
    pub unit: Unit,
}

impl Axis {
    /// Creates an axis with the text beside it.
    pub fn new(label: &str, scale: Scale, unit: Unit) -> Self {
        Self { label: label.to_owned(), scale, unit }
    }
}

/// The shapes that a panel shows.
#[derive(Clone, Debug)]
pub enum Shapes {
    /// Lines through points. Each line has a name.
    Lines(Vec<(String, Vec<(f64, f64)>)>),
    /// Bars beside each other. Each bar has a label, but the horizontal axis shows only some
    /// labels.
    Bars(Vec<(String, f64)>),
}

/// One plot of a page: a title, two axes and shapes.
#[derive(Clone, Debug)]
pub struct Panel {
    /// The text above the plot.
    pub title: String,
    /// The axis below the shapes.
    pub x: Axis,
    /// The axis beside the shapes.
    pub y: Axis,
    /// The content of the plot.
    pub shapes: Shapes,
}

/// Draws a panel as a picture of its own, for a page that has [`STYLE`]. The text `description`
/// says in words what the panel shows. Without `has_legend`, the page must name the lines.
pub fn picture(panel: &Panel, description: &str, has_legend: bool) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH:.0} {HEIGHT:.0}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
        escape(description),
        panel.draw(has_legend)
    )
}

/// Draws a page: rows of panels, each row below its heading.
pub fn page(title: &str, rows: &[(String, Vec<Panel>)]) -> String {
    let columns = rows.iter().map(|(_, panels)| panels.len()).max().unwrap_or(0).max(1);
    let width = columns as f64 * WIDTH;
    let height = TITLE + rows.len() as f64 * (HEAD + HEIGHT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\">\n<title>{0}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"bg\" width=\"100%\" height=\"100%\"/>\n<text class=\"t\" x=\"12\" y=\"24\">{0}</text>\n",
        escape(title)
    );
    for (at, (heading, panels)) in rows.iter().enumerate() {
        let top = TITLE + at as f64 * (HEAD + HEIGHT);
        push(&mut svg, &format!("<text class=\"h\" x=\"12\" y=\"{:.1}\">", top + 18.0));
        push(&mut svg, &format!("{}</text>\n", escape(heading)));
        for (column, panel) in panels.iter().enumerate() {
            let (x, y) = (column as f64 * WIDTH, top + HEAD);
            push(&mut svg, &format!("<g transform=\"translate({x:.0} {y:.0})\">\n"));
            push(&mut svg, &panel.draw(true));
            push(&mut svg, "</g>\n");
        }
    }
    svg.push_str("</svg>\n");
    svg
}

fn push(svg: &mut String, text: &str) {
    svg.push_str(text);
}

/// A mapping from numbers to positions along one axis.
struct Line {
    scale: Scale,
    unit: Unit,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Line {
    fn place(&self, value: f64) -> f64 {
        let at = |x: f64| if self.scale == Scale::Log { x.ln() } else { x };
        let (low, high) = (at(self.low), at(self.high));
        let share = if high > low { (at(value) - low) / (high - low) } else { 0.5 };
        self.from + share * (self.to - self.from)
    }

    /// Returns about five round numbers along the axis.
    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear | Scale::Near => {
                // Round numbers of bytes are multiples of KiB, MiB and so on.
                let unit = match self.unit {
                    Unit::Bytes => 1024f64.powf(self.high.max(1.0).log(1024.0).floor()),
                    Unit::Number | Unit::Percent => 1.0,
                };
                let step = unit * round_step((self.high - self.low) / 5.0 / unit);
                let first = (self.low / step).ceil() as i64;
                let last = (self.high / step + 1e-9).floor() as i64;
                (first..=last.min(first + 20)).map(|n| n as f64 * step).collect()
            }
            Scale::Log => {
                let (low, high) = (self.low.log10(), self.high.log10());
                let every = ((high - low) / 5.0).ceil().max(1.0) as i32;
                let powers = (low.floor() as i32..=high.ceil() as i32).filter(|p| p % every == 0);
                let parts: &[f64] = if high - low < 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let all = powers.flat_map(|p| parts.iter().map(move |part| part * 10f64.powi(p)));
                all.filter(|&x| x >= self.low * 0.999 && x <= self.high * 1.001).collect()
            }
        }
    }
}

/// Returns the smallest number of the series 1, 2, 5, 10, … that is at least `step`.
fn round_step(step: f64) -> f64 {
    if !(step > 0.0 && step.is_finite()) {
        return 1.0;
    }
    let power = 10f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|f| f * power >= step * 0.999);
    factor.unwrap_or(10.0) * power
}

impl Panel {
    fn draw(&self, has_legend: bool) -> String {
        let mut svg = String::new();
        let title = escape(&self.title);
        push(&mut svg, &format!("<text class=\"p\" x=\"{LEFT:.0}\" y=\"14\">{title}</text>\n"));
        let label = escape(&self.y.label);
        push(&mut svg, &format!("<text x=\"{LEFT:.0}\" y=\"27\">{label}</text>\n"));
        let points = self.points();
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let Some(y) = fit_axis(points.iter().map(|p| p.1), &self.y, bottom, TOP) else {
            push(&mut svg, &format!("<text x=\"{LEFT:.0}\" y=\"60\">nothing to show</text>\n"));
            return svg;
        };
        let ticks = y.ticks();
        for &tick in &ticks {
            let at = y.place(tick);
            let _ = writeln!(
                svg,
                "<line class=\"g\" x1=\"{LEFT:.0}\" x2=\"{right:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 5.0,
                at + 4.0,
                format_tick_among(tick, &ticks, self.y.unit)
            );
        }
        match &self.shapes {
            Shapes::Lines(lines) => self.draw_lines(&mut svg, lines, &y, has_legend),
            Shapes::Bars(bars) => draw_bars(&mut svg, bars, &y),
        }
        let _ = writeln!(
            svg,
            "<line class=\"a\" x1=\"{LEFT:.0}\" x2=\"{right:.0}\" y1=\"{bottom:.0}\" y2=\"{bottom:.0}\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            (LEFT + right) / 2.0,
            bottom + 29.0,
            escape(&self.x.label)
        );
        svg
    }

    /// Returns the points of all shapes that the scales of the axes can show.
    fn points(&self) -> Vec<(f64, f64)> {
        match &self.shapes {
            Shapes::Lines(lines) => {
                let all = lines.iter().flat_map(|(_, points)| points.iter().copied());
                all.filter(|&point| self.can_show(point)).collect()
            }
            Shapes::Bars(bars) => bars.iter().map(|(_, y)| (0.0, *y)).collect(),
        }
    }

    fn can_show(&self, (x, y): (f64, f64)) -> bool {
        let can = |scale, value: f64| value.is_finite() && (scale != Scale::Log || value > 0.0);
        can(self.x.scale, x) && can(self.y.scale, y)
    }

    fn draw_lines(
        &self,
        svg: &mut String,
        lines: &[(String, Vec<(f64, f64)>)],
        y: &Line,
        has_legend: bool,
    ) {
        let all = self.points();
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let Some(x) = fit_axis(all.iter().map(|p| p.0), &self.x, LEFT, right) else { return };
        let ticks = x.ticks();
        for &tick in &ticks {
            let at = x.place(tick);
            let _ = writeln!(
                svg,
                "<line class=\"a\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{bottom:.0}\" y2=\"{:.0}\"/>\
                 <text x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
                bottom + 4.0,
                bottom + 16.0,
                format_tick_among(tick, &ticks, self.x.unit)
            );
        }
        let mut legend = LEFT;
        for (at, (name, points)) in lines.iter().enumerate() {
            let colour = match name.as_str() {
                IDEAL => "r".to_owned(),
                _ => (at % COLOURS).to_string(),
            };
            let mut shown = points.clone();
            shown.retain(|&point| self.can_show(point));
            let place = |&(a, b): &(f64, f64)| (x.place(a), y.place(b));
            let places: Vec<(f64, f64)> = shown.iter().map(place).collect();
            let path: Vec<String> = places.iter().map(|(a, b)| format!("{a:.1},{b:.1}")).collect();
            let has_only_points = name == POINTS;
            if !has_only_points {
                let path = path.join(" ");
                let _ = writeln!(svg, "<polyline class=\"l l{colour}\" points=\"{path}\"/>");
            }
            if has_only_points || (places.len() <= 24 && name != IDEAL) {
                let head =
                    if has_only_points { String::new() } else { format!("{}: ", escape(name)) };
                for ((a, b), (_, value)) in places.iter().zip(&shown) {
                    let _ = write!(
                        svg,
                        "<circle class=\"m{colour}\" cx=\"{a:.1}\" cy=\"{b:.1}\" r=\"2.5\"><title>{head}{}</title></circle>",
                        format_short(*value)
                    );
                }
                svg.push('\n');
            }
            if !has_legend || has_only_points {
                continue;
            }
            let below = bottom + 42.0;
            let _ = writeln!(
                svg,
                "<rect class=\"m{colour}\" x=\"{legend:.1}\" y=\"{:.1}\" width=\"10\" height=\"4\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                below,
                legend + 14.0,
                below + 5.0,
                escape(name)
            );
            legend += 26.0 + 6.2 * name.chars().count() as f64;
        }
    }
}

/// Returns the mapping of an axis whose range contains all of these numbers. Returns `None` if
/// there are no numbers.
fn fit_axis(values: impl Iterator<Item = f64>, axis: &Axis, from: f64, to: f64) -> Option<Line> {
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        (low, high) = (low.min(value), high.max(value));
    }
    if low > high {
        return None;
    }
    let (scale, unit) = (axis.scale, axis.unit);
    if scale == Scale::Linear {
        low = low.min(0.0);
        if high <= low {
            high = low + 1.0;
        }
    } else if high <= low && scale == Scale::Near {
        let margin = (low.abs() * 0.05).max(1e-6);
        (low, high) = (low - margin, high + margin);
    } else if high <= low {
        (low, high) = (low / 2.0, high * 2.0);
    }
    Some(Line { scale, unit, low, high, from, to })
}

fn draw_bars(svg: &mut String, bars: &[(String, f64)], y: &Line) {
    let bottom = HEIGHT - BOTTOM;
    let each = (WIDTH - RIGHT - LEFT) / bars.len().max(1) as f64;
    // There is room for only a few labels, so only some of the bars have one.
    let every = bars.len().div_ceil(4).max(1);
    for (at, (name, value)) in bars.iter().enumerate() {
        let (x, top) = (LEFT + at as f64 * each, y.place(*value));
        let _ = writeln!(
            svg,
            "<rect class=\"b\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}: {}</title></rect>",
            x + each * 0.05,
            each * 0.9,
            (bottom - top).max(0.0),
            escape(name),
            format_tick(*value, Unit::Number)
        );
        if at.is_multiple_of(every) {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
                x + each / 2.0,
                bottom + 16.0,
                escape(name)
            );
        }
    }
}

/// Formats a number for an axis.
pub fn format_tick(value: f64, unit: Unit) -> String {
    let scaled = |base: f64, units: &[&str]| {
        let mut sizes = units.iter().enumerate().rev().map(|(i, unit)| (base.powi(i as i32), unit));
        let (by, unit) = sizes.find(|(by, _)| value.abs() >= *by).unwrap_or((1.0, &""));
        let text = format!("{:.1}", value / by);
        format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
    };
    match unit {
        Unit::Percent => format!("{}%", format_short(100.0 * value)),
        Unit::Bytes => scaled(1024.0, &["B", "K", "M", "G", "T"]),
        Unit::Number if value != 0.0 && value.abs() < 1.0 => format_short(value),
        Unit::Number => scaled(1000.0, &["", "k", "M", "G"]),
    }
}

/// Formats a number for an axis with as many digits as the ticks beside it need.
fn format_tick_among(value: f64, ticks: &[f64], unit: Unit) -> String {
    let scale = if unit == Unit::Percent { 100.0 } else { 1.0 };
    let mut steps = ticks.windows(2).map(|pair| scale * (pair[1] - pair[0]));
    let step = steps.next().unwrap_or_default();
    let is_linear = steps.all(|other| (other - step).abs() < 0.01 * step);
    let shown = scale * value;
    let is_fine = is_linear && step > 0.0 && step < shown.abs() / 100.0;
    if unit == Unit::Bytes || !is_fine || step >= 1.0 {
        return format_tick(value, unit);
    }
    let digits = (-step.log10()).ceil().clamp(0.0, 9.0) as usize;
    let sign = if unit == Unit::Percent { "%" } else { "" };
    format!("{shown:.digits$}{sign}")
}

/// Formats a number with three digits, without zeros at the end of the fraction.
fn format_short(value: f64) -> String {
    let digits =
        if value == 0.0 { 0 } else { (2 - value.abs().log10().floor() as i32).clamp(0, 6) };
    let text = format!("{value:.*}", digits as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Escapes the characters that are markup in SVG and HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_well_formed_and_stays_inside() {
        let line = |name: &str| {
            let points = (0..40).map(|i| (f64::from(i) * 1e3, f64::from(i * i) / 1600.0));
            (name.to_owned(), points.collect::<Vec<_>>())
        };
        let x = Axis::new("rows & more", Scale::Log, Unit::Number);
        let y = Axis::new("share", Scale::Linear, Unit::Percent);
        let panel = |shapes| Panel { title: "a < b".into(), x: x.clone(), y: y.clone(), shapes };
        let bars = (0..9).map(|i| (format!("bin {i}"), f64::from(i))).collect();
        let rows = vec![(
            "table \"x\"".to_owned(),
            vec![
                panel(Shapes::Lines(vec![line("one"), line("two")])),
                panel(Shapes::Bars(bars)),
                panel(Shapes::Lines(Vec::new())),
            ],
        )];
        let svg = page("all", &rows);
        assert!(svg.contains("a &lt; b") && svg.contains("rows &amp; more"), "{svg}");
        assert!(svg.contains("prefers-color-scheme:dark") && svg.contains("nothing to show"));
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("class=\"b\"").count(), 9);
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        for points in svg.split("points=\"").skip(1) {
            let points = points.split('"').next().unwrap_or_default();
            // A logarithmic axis cannot show the point at 0.
            assert_eq!(points.split(' ').count(), 39);
            for point in points.split(' ') {
                let (x, y) = point.split_once(',').expect("two numbers");
                let (x, y): (f64, f64) = (x.parse().expect("x"), y.parse().expect("y"));
                assert!((LEFT..=WIDTH).contains(&x) && (0.0..=HEIGHT).contains(&y), "{point}");
            }
        }
        assert_eq!(svg, page("all", &rows));
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 5.0, 1500.0, 2e6, 0.25, 12.5];
        let written_as = numbers.map(|n| format_tick(n, Unit::Number));
        assert_eq!(written_as, ["0", "5", "1.5k", "2M", "0.25", "12.5"]);
        assert_eq!(
            [0.0, 0.005, 0.5, 1.0].map(|n| format_tick(n, Unit::Percent)),
            ["0%", "0.5%", "50%", "100%"]
        );
        assert_eq!(
            [512.0, 1536.0, 3e9].map(|n| format_tick(n, Unit::Bytes)),
            ["512B", "1.5K", "2.8G"]
        );
        let of =
            |scale, unit, low, high| Line { scale, unit, low, high, from: 0.0, to: 1.0 }.ticks();
        let axis = |scale, low, high| of(scale, Unit::Number, low, high);
        assert_eq!(axis(Scale::Linear, 0.0, 10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        let bytes = of(Scale::Linear, Unit::Bytes, 0.0, 3e8);
        assert_eq!(bytes.last().map(|&b| format_tick(b, Unit::Bytes)), Some("200M".to_owned()));
        let decades = axis(Scale::Log, 1.0, 1e6);
        assert!((3..=7).contains(&decades.len()) && decades[0] == 1.0, "{decades:?}");
        assert_eq!(axis(Scale::Log, 3.0, 60.0), [5.0, 10.0, 20.0, 50.0]);
        let near = axis(Scale::Near, 0.7812, 0.7834);
        let texts = near.iter().map(|&tick| format_tick_among(tick, &near, Unit::Number));
        assert_eq!(texts.collect::<Vec<_>>(), ["0.7815", "0.7820", "0.7825", "0.7830"]);
    }
}
