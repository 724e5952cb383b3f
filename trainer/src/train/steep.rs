//! A model for tests of steps whose gradients have no finite norm.

/// Returns a model whose loss is finite and whose dense gradient may not be: the slope of a square
/// root is infinite at 0, and is multiplied by 0 there. With `width` 1, the gradients of some steps
/// are finite.
pub(super) fn steep_model(width: usize) -> String {
    format!(
        "[model]\nkind = 'graph'\nlogits = 'score'\n\
         [model.nodes.fields]\nop = 'embedding'\n\
         [model.nodes.hidden]\nop = 'linear'\ninputs = ['fields']\nwidth = {width}\n\
         [model.nodes.active]\nop = 'relu'\ninputs = ['hidden']\n\
         [model.nodes.factor]\nop = 'param'\nshape = [1, {width}]\n\
         [model.nodes.scaled]\nop = 'mul'\ninputs = ['active', 'factor']\n\
         [model.nodes.square]\nop = 'square'\ninputs = ['scaled']\n\
         [model.nodes.root]\nop = 'sqrt'\ninputs = ['square']\n\
         [model.nodes.score]\nop = 'linear'\ninputs = ['root']\nwidth = 1\n"
    )
}
