use kinds::columns::Cell;

/// Cells of tables (`rest.TableConvertor`). The columns are in the description of the kind.
pub trait TableConvertor: Send + Sync {
    /// Evaluates a table cell function of this kind. None for an unknown function.
    fn cell(&self, _cell: &Cell<'_>) -> Option<meta::Value> {
        None
    }
}
