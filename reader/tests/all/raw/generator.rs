//! A generator of random rows with all kinds of features, in all formats.

use std::sync::Arc;

use arrow_array::builder::{
    Int64Builder, LargeListBuilder, ListBuilder, StringBuilder, StringDictionaryBuilder,
    UInt64Builder,
};
use arrow_array::types::{Int8Type, UInt16Type};
use arrow_array::{
    ArrayRef, Float64Array, Int32Array, Int64Array, StringArray, StringViewArray, UInt64Array,
};
use proptest::prelude::*;

use crate::fixture::{Folder, write_ipc, write_parquet};

/// A job with all kinds of features, from the data and from two side tables. The columns of `town`,
/// `recent` and `scale` have other names than the features. `shop` is a feature and also the key of
/// a side table.
pub(super) const JOB: &str = r#"
    [features.user]
    kind = "id"
    [features.big]
    kind = "id"
    type = "u64"
    [features.town]
    kind = "id"
    type = "string"
    column = "city"
    [features.shop]
    kind = "id"
    type = "string"
    [features.tags]
    kind = "ids"
    [features.recent]
    kind = "sequence"
    column = "tags"
    max_len = 2
    [features.bigs]
    kind = "ids"
    type = "u64"
    [features.words]
    kind = "ids"
    type = "string"
    [features.age]
    kind = "numeric"
    transform = "log1p"
    missing = 30.5
    [features.size]
    kind = "numeric"
    transform = "standardise"
    missing = 0
    [features.scale]
    kind = "numeric"
    column = "price"
    missing = 1.5
    [features.price]
    kind = "bucketized"
    buckets = 5
    [features.step]
    kind = "bucketized"
    column = "size"
    boundaries = [-10, 0, 17]
    [features.district]
    kind = "id"
    type = "string"
    side = "shops"
    by = "shop"
    [features.rent]
    kind = "numeric"
    transform = "standardise"
    missing = 2
    side = "shops"
    by = "shop"
    [features.goods]
    kind = "sequence"
    max_len = 1
    side = "shops"
    by = "shop"
    [features.rating]
    kind = "bucketized"
    boundaries = [2, 4]
    side = "sellers"
    by = "seller"
    [features.user_town]
    kind = "cross"
    of = ["user", "town"]
    [features.district_rating]
    kind = "cross"
    of = ["district", "rating"]
    [labels.click]
    [labels.buy]
    [columns]
    weight = "weight"
    [side.shops]
    path = "shops.parquet"
    key = "shop"
    type = "string"
    [side.sellers]
    path = "sellers.parquet"
    key = "seller"
"#;

type Columns = Vec<(&'static str, ArrayRef)>;

/// Writes the side tables of the job.
pub(super) fn write_sides(folder: &Folder, dictionary: bool) {
    write_parquet(&folder.path("shops.parquet"), shops(), 4, dictionary);
    write_parquet(&folder.path("sellers.parquet"), sellers(), 4, dictionary);
}

fn shops() -> Columns {
    let mut goods = ListBuilder::new(Int64Builder::new());
    for shop in 0..9i64 {
        (0..shop % 4).for_each(|good| goods.values().append_value(good - shop));
        goods.append(true);
    }
    let district = |shop: i32| (shop % 3 > 0).then(|| format!("d{}", shop % 4));
    vec![
        ("shop", Arc::new(StringArray::from_iter_values((0..9).map(|shop| format!("s{shop}"))))),
        ("district", Arc::new(StringArray::from_iter((0..9).map(district)))),
        (
            "rent",
            Arc::new(Int32Array::from_iter((0..9).map(|shop| (shop != 4).then_some(shop * 7)))),
        ),
        ("goods", Arc::new(goods.finish())),
    ]
}

fn sellers() -> Columns {
    vec![
        ("seller", Arc::new(Int64Array::from_iter_values(-4..4))),
        (
            "rating",
            Arc::new(Float64Array::from_iter((0..8).map(|s| (s != 3).then(|| f64::from(s) * 0.7)))),
        ),
    ]
}

#[derive(Clone, Debug)]
pub(super) struct Row {
    user: Option<i64>,
    big: Option<u64>,
    city: Option<String>,
    pub(super) shop: Option<String>,
    seller: Option<i64>,
    tags: Option<Vec<i64>>,
    bigs: Option<Vec<u64>>,
    words: Option<Vec<String>>,
    age: Option<f64>,
    pub(super) size: Option<i64>,
    pub(super) price: Option<f64>,
    click: Option<i64>,
    buy: Option<i64>,
}

pub(super) fn row() -> impl Strategy<Value = Row> {
    let word = || "[a-z \"ü\n]{1,5}";
    let number = || {
        prop_oneof![
            -1e6..1e6f64,
            (0..50i32).prop_map(f64::from),
            // The numbers have long mantissas, so that the order of a sum changes its result in
            // `f32`.
            any::<f32>().prop_filter("in range", |x| x.abs() < 1e30).prop_map(f64::from),
        ]
    };
    let big = || prop_oneof![any::<u64>(), 0..9u64, Just(u64::MAX), Just(i64::MAX as u64 + 1)];
    let small = || prop_oneof![any::<i64>(), -9..9i64, Just(i64::MIN), Just(i64::MAX)];
    let ids = (prop::option::of(small()), prop::option::of(big()), prop::option::of(word()));
    let keys = (prop::option::of("s[0-9]{1,2}"), prop::option::of(-6..6i64));
    let lists = (
        prop::option::of(prop::collection::vec(small(), 0..5)),
        prop::option::of(prop::collection::vec(big(), 0..4)),
        prop::option::of(prop::collection::vec(word(), 0..4)),
    );
    let numbers =
        (prop::option::of(number()), prop::option::of(-1000..1000i64), prop::option::of(number()));
    let labels = (prop::option::of(0..2i64), prop::option::of(0..2i64));
    (ids, keys, lists, numbers, labels).prop_map(
        |(
            (user, big, city),
            (shop, seller),
            (tags, bigs, words),
            (age, size, price),
            (click, buy),
        )| {
            Row { user, big, city, shop, seller, tags, bigs, words, age, size, price, click, buy }
        },
    )
}

/// The file extensions, each with the `[data]` settings that read such a file.
pub(super) const FORMATS: [(&str, &str); 8] = [
    ("csv", ""),
    ("csv.zst", "delimiter = ';'\ndecimal = ','\nlist_separator = '/'\nnull = ['NA', '-']"),
    (
        "tsv",
        "header = ['seller', 'user', 'weight', 'big', 'city', 'shop', 'tags', 'bigs', 'words', 'age', 'size', 'price', 'click', 'buy']",
    ),
    ("jsonl.gz", "null = ['NA']"),
    ("parquet", ""),
    ("arrow", ""),
    ("feather", ""),
    ("txt", "format = 'csv'\nquote = \"'\"\ndelimiter = '|'\nlist_separator = ' '\nnull = ['-']"),
];

pub(super) fn write(folder: &Folder, name: &str, rows: &[Row], group: usize, dictionary: bool) {
    match name.split_once('.').map_or("", |(_, end)| end) {
        "csv" => folder.write(name, Dialect::new(",", "|").text(rows)),
        "csv.zst" => {
            let dialect = Dialect { decimal: ",", null: ["NA", "-"], ..Dialect::new(";", "/") };
            folder.write_zstd(name, dialect.text(rows).as_bytes());
        }
        "tsv" => {
            // This file has no header.
            let text = Dialect::new("\t", "|").text(rows);
            folder.write(name, text.split_once('\n').map_or("", |(_, rows)| rows));
        }
        "txt" => {
            let dialect = Dialect { quote: "'", null: ["-", ""], ..Dialect::new("|", " ") };
            // Words may contain spaces. Here a space separates ids, so such a word becomes several
            // ids.
            folder.write(name, dialect.text(rows));
        }
        "jsonl.gz" => folder.write_gzip(name, json(rows).as_bytes()),
        "parquet" => write_parquet(&folder.path(name), columns(rows), group, dictionary),
        "arrow" => write_ipc(&folder.path(name), columns(rows), group, None),
        // A writer stores each dictionary once, so there is only one record batch.
        _ => write_ipc(&folder.path(name), encoded(rows), rows.len(), None),
    }
}

struct Dialect {
    delimiter: &'static str,
    quote: &'static str,
    separator: &'static str,
    decimal: &'static str,
    /// The texts for a missing value, which are used in turn.
    null: [&'static str; 2],
}

impl Dialect {
    fn new(delimiter: &'static str, separator: &'static str) -> Self {
        Self { delimiter, quote: "\"", separator, decimal: ".", null: ["", ""] }
    }

    fn cell(&self, row: usize, text: Option<String>) -> String {
        let quote = self.quote;
        match text {
            Some(text) => format!("{quote}{}{quote}", text.replace(quote, &quote.repeat(2))),
            None => self.null[row % 2].to_owned(),
        }
    }

    fn text(&self, rows: &[Row]) -> String {
        let header = [
            "seller", "user", "weight", "big", "city", "shop", "tags", "bigs", "words", "age",
            "size", "price", "click", "buy",
        ];
        let mut text = header.join(self.delimiter) + "\n";
        for (at, row) in rows.iter().enumerate() {
            let cells = [
                row.seller.map(|x| x.to_string()),
                row.user.map(|x| x.to_string()),
                Some("1".to_owned()),
                row.big.map(|x| x.to_string()),
                row.city.clone(),
                row.shop.clone(),
                self.list(at, row.tags.as_deref()),
                self.list(at, row.bigs.as_deref()),
                self.list(at, row.words.as_deref()),
                row.age.map(|x| self.number(x)),
                row.size.map(|x| x.to_string()),
                row.price.map(|x| self.number(x)),
                row.click.map(|x| x.to_string()),
                row.buy.map(|x| x.to_string()),
            ];
            let cells: Vec<String> = cells.into_iter().map(|cell| self.cell(at, cell)).collect();
            text.push_str(&cells.join(self.delimiter));
            text.push('\n');
        }
        text
    }

    /// Returns the cell for a list of ids, or `None` if the list is missing. Some lists contain a
    /// missing id.
    fn list<T: ToString>(&self, row: usize, items: Option<&[T]>) -> Option<String> {
        let mut items: Vec<String> = items?.iter().map(ToString::to_string).collect();
        if row % 3 == 1 {
            items.insert(items.len() / 2, self.null[0].to_owned());
        }
        Some(items.join(self.separator))
    }

    fn number(&self, x: f64) -> String {
        format!("{x:e}").replace('.', self.decimal)
    }
}

/// Writes rows as JSON lines. A missing value is null in some rows, absent in others, and a null
/// marker in the rest.
fn json(rows: &[Row]) -> String {
    let line = |(at, r): (usize, &Row)| {
        let value = serde_json::json!({
            "weight": 1, "user": r.user, "big": r.big, "city": r.city, "shop": r.shop, "seller": r.seller,
            "tags": r.tags, "bigs": r.bigs, "words": r.words, "age": r.age, "size": r.size,
            "price": r.price, "click": r.click, "buy": r.buy,
        });
        let serde_json::Value::Object(mut object) = value else { unreachable!() };
        match at % 3 {
            1 => object.retain(|_, value| !value.is_null()),
            2 => object.values_mut().filter(|v| v.is_null()).for_each(|v| *v = "NA".into()),
            _ => {}
        }
        serde_json::Value::Object(object).to_string() + "\n"
    };
    rows.iter().enumerate().map(line).collect()
}

fn columns(rows: &[Row]) -> Columns {
    let mut tags = ListBuilder::new(Int64Builder::new());
    let mut bigs = ListBuilder::new(UInt64Builder::new());
    let mut words = ListBuilder::new(StringBuilder::new());
    for row in rows {
        tags.append_option(row.tags.as_ref().map(|x| x.iter().copied().map(Some)));
        bigs.append_option(row.bigs.as_ref().map(|x| x.iter().copied().map(Some).chain([None])));
        words.append_option(row.words.as_ref().map(|x| x.iter().map(Some).chain([None])));
    }
    let ints = |value: &dyn Fn(&Row) -> Option<i64>| -> ArrayRef {
        Arc::new(rows.iter().map(value).collect::<Int64Array>())
    };
    let floats = |value: &dyn Fn(&Row) -> Option<f64>| -> ArrayRef {
        Arc::new(rows.iter().map(value).collect::<Float64Array>())
    };
    vec![
        ("weight", Arc::new(rows.iter().map(|_| Some(1.0)).collect::<Float64Array>())),
        ("big", Arc::new(rows.iter().map(|r| r.big).collect::<UInt64Array>())),
        ("user", ints(&|r| r.user)),
        ("city", Arc::new(rows.iter().map(|r| r.city.clone()).collect::<StringArray>())),
        ("shop", Arc::new(rows.iter().map(|r| r.shop.clone()).collect::<StringArray>())),
        ("seller", ints(&|r| r.seller)),
        ("tags", Arc::new(tags.finish())),
        ("bigs", Arc::new(bigs.finish())),
        ("words", Arc::new(words.finish())),
        ("age", floats(&|r| r.age)),
        ("size", ints(&|r| r.size)),
        ("price", floats(&|r| r.price)),
        ("click", ints(&|r| r.click)),
        ("buy", ints(&|r| r.buy)),
    ]
}

/// Returns the columns of the same rows in other Arrow encodings.
fn encoded(rows: &[Row]) -> Columns {
    let mut words = LargeListBuilder::new(StringDictionaryBuilder::<Int8Type>::new());
    let mut tags = LargeListBuilder::new(Int64Builder::new());
    let mut city = StringDictionaryBuilder::<UInt16Type>::new();
    for row in rows {
        words.append_option(row.words.as_ref().map(|w| w.iter().map(Some)));
        tags.append_option(row.tags.as_ref().map(|t| t.iter().copied().map(Some)));
        city.append_option(row.city.as_ref());
    }
    let mut columns = columns(rows);
    for (name, array) in &mut columns {
        *array = match *name {
            "city" => Arc::new(city.finish()),
            "shop" => Arc::new(rows.iter().map(|r| r.shop.as_deref()).collect::<StringViewArray>()),
            "tags" => Arc::new(tags.finish()),
            "words" => Arc::new(words.finish()),
            "seller" => {
                Arc::new(rows.iter().map(|r| r.seller.map(|s| s as i32)).collect::<Int32Array>())
            }
            _ => continue,
        };
    }
    columns
}
