//! Matrix products of a device by its library of products.

use super::memory::Memory;

/// The arithmetic of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Precision {
    /// Operands of 32 bits, multiplied and added as such.
    F32,
    /// Operands of 32 bits that are rounded to TF32 (10 bits of fraction), added in 32 bits.
    Tf32,
    /// Operands of type bf16, added in 32 bits.
    Bf16,
}

/// The type of a product's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// A float of 32 bits.
    F32,
    /// A float of 16 bits with the range of `f32`.
    Bf16,
}

impl Element {
    /// Returns the number of bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

impl Precision {
    /// Returns the type of the operands.
    pub const fn element(self) -> Element {
        match self {
            Self::F32 | Self::Tf32 => Element::F32,
            Self::Bf16 => Element::Bf16,
        }
    }
}

/// The last operation on the sums of a product before they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Epilogue {
    /// The sums are written as they are.
    None,
    /// A bias for each column is added.
    Bias,
    /// A bias for each column is added, and negative sums become zero.
    BiasRelu,
}

/// A product `C = A · B` of row-major matrices: C has `m` rows and `n` columns, and each sum has
/// `k` terms. A leading dimension is the distance of two rows in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// The arithmetic, which also says the type of A and B.
    pub precision: Precision,
    /// The type of C. The bias has the same type.
    pub output: Element,
    /// The number of rows of C.
    pub m: usize,
    /// The number of columns of C.
    pub n: usize,
    /// The number of terms of a sum.
    pub k: usize,
    /// Whether A is stored as its transpose: `k` rows of `m`.
    pub transpose_a: bool,
    /// Whether B is stored as its transpose: `n` rows of `k`.
    pub transpose_b: bool,
    /// The memory of the matrix A.
    pub a: Memory,
    /// The leading dimension of A.
    pub lda: usize,
    /// The memory of the matrix B.
    pub b: Memory,
    /// The leading dimension of B.
    pub ldb: usize,
    /// The memory of the matrix C.
    pub c: Memory,
    /// The leading dimension of C.
    pub ldc: usize,
    /// Whether the product is added to C instead of replacing it.
    pub accumulate: bool,
    /// The last operation on the sums.
    pub epilogue: Epilogue,
    /// The bias, of `n` elements; not used without a bias.
    pub bias: Memory,
}

/// The 64 bytes by which the library of products names an algorithm. A run that keeps them can
/// choose the same algorithm again.
pub type Algorithm = [u8; 64];

/// All of a product except for its addresses, of which only the alignment counts. It is the key
/// under which an algorithm is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ProductKey {
    precision: Precision,
    output: Element,
    sizes: [usize; 6],
    transposes: [bool; 2],
    accumulate: bool,
    epilogue: Epilogue,
    alignments: [u32; 3],
}

impl ProductKey {
    /// Returns the alignment of A, B and C in bytes, at most 256.
    pub(crate) fn alignments(&self) -> [u32; 3] {
        self.alignments
    }
}

impl Product {
    /// Returns the number of floating-point operations.
    pub fn flop(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Returns the text of all on which the choice of an algorithm depends: everything but the
    /// addresses, of which only the alignment counts. Two products with the same text have the same
    /// algorithm.
    pub fn shape(&self) -> String {
        let ProductKey { precision, output, sizes, transposes, accumulate, epilogue, alignments } =
            self.key();
        let name = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
        let turn = |flag: bool| if flag { "t" } else { "n" };
        let [m, n, k, lda, ldb, ldc] = sizes;
        let [a, b, c] = alignments;
        format!(
            "{} {}{} {m}x{n}x{k} ld {lda} {ldb} {ldc} at {a} {b} {c} to {} {}{}",
            name(&precision),
            turn(transposes[0]),
            turn(transposes[1]),
            name(&output),
            name(&epilogue),
            if accumulate { " added" } else { "" },
        )
    }

    pub(crate) fn key(&self) -> ProductKey {
        let alignment = |memory: Memory| 1 << memory.address().trailing_zeros().min(8);
        ProductKey {
            precision: self.precision,
            output: self.output,
            sizes: [self.m, self.n, self.k, self.lda, self.ldb, self.ldc],
            transposes: [self.transpose_a, self.transpose_b],
            accumulate: self.accumulate,
            epilogue: self.epilogue,
            alignments: [self.a, self.b, self.c].map(alignment),
        }
    }

    /// Returns the rows and the columns of A, B and C as they are stored.
    pub(crate) fn stored(&self) -> [(usize, usize); 3] {
        let turn = |flag: bool, rows, columns| if flag { (columns, rows) } else { (rows, columns) };
        [
            turn(self.transpose_a, self.m, self.k),
            turn(self.transpose_b, self.k, self.n),
            (self.m, self.n),
        ]
    }

    /// Returns what is wrong with the sizes and the ranges. Leading dimensions must be multiples of
    /// 16 bytes, and addresses too: the library is several times slower otherwise, or refuses.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.m == 0 || self.n == 0 || self.k == 0 {
            return Some("a product has at least one row, one column and one term".into());
        }
        let input = self.precision.element().bytes();
        let output = self.output.bytes();
        let parts = [
            ("A", self.a, self.lda, input),
            ("B", self.b, self.ldb, input),
            ("C", self.c, self.ldc, output),
        ];
        for ((name, memory, leading, element), (rows, columns)) in
            parts.into_iter().zip(self.stored())
        {
            if leading < columns {
                return Some(format!(
                    "the leading dimension of {name} is {leading}, less than its {columns} columns"
                ));
            }
            if (leading * element) % 16 != 0 {
                return Some(format!(
                    "the leading dimension of {name} is {leading} elements of {element} bytes; use \
                     a multiple of 16 bytes"
                ));
            }
            if memory.address() % 16 != 0 {
                return Some(format!("the address of {name} is not a multiple of 16"));
            }
            let bytes = ((rows - 1) * leading + columns) * element;
            if bytes > memory.bytes() {
                let given = memory.bytes();
                return Some(format!("{name} has {given} bytes, and the product uses {bytes}"));
            }
        }
        if self.epilogue != Epilogue::None && self.bias.bytes() < self.n * output {
            return Some(format!("the bias has fewer than {} elements", self.n));
        }
        if self.precision != Precision::Bf16 && self.output == Element::Bf16 {
            return Some("an output of type bf16 needs operands of type bf16".into());
        }
        None
    }

    /// Returns the text of the product in errors.
    pub(crate) fn label(&self) -> String {
        let Self { precision, m, n, k, lda, ldb, ldc, .. } = self;
        let t = |flag: bool| if flag { "T" } else { "" };
        let (ta, tb) = (t(self.transpose_a), t(self.transpose_b));
        format!(
            "product {precision:?} A{ta} B{tb} m {m}, n {n}, k {k} (leading dimensions {lda}, \
             {ldb}, {ldc}; {:?})",
            self.epilogue
        )
    }
}
