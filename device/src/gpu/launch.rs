//! Kernels, their parameters and their launches.

use std::fmt;

use super::error::GpuError;

/// A source file of kernels, which is compiled as one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The name of the unit, such as `gather`.
    pub name: &'static str,
    /// The text of the source file.
    pub source: &'static str,
}

/// The kind of a kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// An address in the device's memory: 8 bytes.
    Pointer,
    /// A plain value of this number of bytes.
    Value(usize),
}

impl ParamKind {
    /// Returns the number of bytes of the parameter.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Pointer => 8,
            Self::Value(bytes) => bytes,
        }
    }
}

/// A kernel: its name, its unit, and the kinds of its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The name of the function in the source (`extern "C"`).
    pub name: &'static str,
    /// The name of the unit whose source has the function.
    pub unit: &'static str,
    /// The kinds of the parameters, in order.
    pub params: &'static [ParamKind],
}

/// A parameter of a launch: the bytes of a plain value. They are copied when the launch is
/// enqueued, and a captured launch keeps them for all replays.
#[derive(Clone, Copy, Debug)]
pub struct Param<'a>(&'a [u8]);

impl<'a> Param<'a> {
    /// Passes the bytes of `value`.
    pub fn new<T: bytemuck::NoUninit>(value: &'a T) -> Self {
        Self(bytemuck::bytes_of(value))
    }

    /// Passes the bytes of a value that was kept as bytes, for example in a list of launches.
    pub fn from_bytes(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the value.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// A named size of a launch, such as `("rows", 8192)`. Errors show it.
pub type Shape = (&'static str, usize);

/// A launch of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The kernel to run.
    pub kernel: &'static Kernel,
    /// The number of blocks in x, y and z.
    pub grid: [u32; 3],
    /// The number of threads of a block in x, y and z.
    pub block: [u32; 3],
    /// The number of bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// The parameters, as many and as large as the kernel says.
    pub params: &'a [Param<'a>],
    /// The sizes that an error shows, at most [`Launch::SHAPES`] of them.
    pub shapes: &'a [Shape],
}

impl Launch<'_> {
    /// The number of shapes that an error shows.
    pub const SHAPES: usize = 6;

    /// Copies what an error says about this launch.
    pub(crate) fn label(&self) -> Label {
        let mut shapes = [("", 0); Self::SHAPES];
        let count = self.shapes.len().min(Self::SHAPES);
        shapes[..count].copy_from_slice(&self.shapes[..count]);
        Label { name: self.kernel.name, grid: self.grid, block: self.block, shapes, count }
    }

    /// Makes the error of a launch that is refused.
    pub(crate) fn refuse(&self, problem: String) -> GpuError {
        GpuError::Launch { launch: self.label().to_string(), problem }
    }

    /// Makes the error of a kernel that is not in the table of kernels.
    pub(crate) fn unknown_kernel(&self) -> GpuError {
        let Kernel { name, unit, .. } = *self.kernel;
        let problem = "it is not in the table of kernels".to_owned();
        GpuError::UnknownKernel { name, unit, problem }
    }

    /// Returns what is wrong with the launch, as far as the host can see.
    pub(crate) fn problem(&self) -> Option<String> {
        let kinds = self.kernel.params;
        if kinds.len() != self.params.len() {
            let (wanted, given) = (kinds.len(), self.params.len());
            return Some(format!("the kernel has {wanted} parameters, and {given} are given"));
        }
        for (index, (kind, param)) in kinds.iter().zip(self.params).enumerate() {
            let (wanted, given) = (kind.bytes(), param.0.len());
            if wanted != given {
                return Some(format!(
                    "parameter {index} has {wanted} bytes, and {given} are given"
                ));
            }
        }
        let threads = self.block.iter().map(|&side| u64::from(side)).product::<u64>();
        if threads == 0 || threads > 1024 {
            return Some(format!("a block has 1 to 1024 threads, and {threads} are asked for"));
        }
        if self.grid.contains(&0) || self.grid[1] > 65_535 || self.grid[2] > 65_535 {
            let [x, y, z] = self.grid;
            return Some(format!(
                "a grid has 1 to 2147483647 x 65535 x 65535 blocks, and {x} x {y} x {z} are asked for"
            ));
        }
        if self.grid[0] > i32::MAX as u32 {
            return Some(format!(
                "a grid has at most 2147483647 blocks in x, not {}",
                self.grid[0]
            ));
        }
        None
    }
}

/// The text of a launch in errors: a copy without heap memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label {
    name: &'static str,
    grid: [u32; 3],
    block: [u32; 3],
    shapes: [Shape; Launch::SHAPES],
    count: usize,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([gx, gy, gz], [bx, by, bz]) = (self.grid, self.block);
        write!(f, "{} <<<{gx}x{gy}x{gz}, {bx}x{by}x{bz}>>>", self.name)?;
        for (index, (name, size)) in self.shapes[..self.count].iter().enumerate() {
            write!(f, "{}{name} {size}", if index == 0 { " (" } else { ", " })?;
        }
        if self.count > 0 { f.write_str(")") } else { Ok(()) }
    }
}
