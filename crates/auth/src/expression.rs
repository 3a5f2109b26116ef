//! CEL expressions of authentication and authorization configurations: one variable, and a result.

use cel::{Budget, Env, Error, Program, RUNTIME_BUDGET, Type, Val, Vars};
use meta::Value;
use std::fmt;

pub struct Expression {
    pub text: String,
    program: Program,
}

impl Expression {
    /// Compiles an expression over one variable; any type if `expected` is none. Errors have upstream's message,
    /// without the path.
    pub fn compile(env: &Env, text: &str, expected: Option<&Type>) -> Result<Self, String> {
        let c = env.compile(text).map_err(|e| format!("compilation failed: {e}"))?;
        if let Some(w) = expected.filter(|w| w.to_string() != c.ty.to_string()) {
            return Err(format!("must evaluate to {w} but got {}", c.ty));
        }
        Ok(Self { text: text.to_owned(), program: c.program })
    }

    pub fn eval<'a>(&'a self, variable: &'a str, value: &'a Value) -> Result<Val<'a>, String> {
        let value = self.program.eval(&SingleVariable { variable, value }, &mut Budget::new(RUNTIME_BUDGET));
        value.map_err(|e| format!("expression '{}' resulted in error: {e}", self.text))
    }

    /// Whether the expression uses this field of this variable.
    pub fn selects(&self, variable: &str, field: &str) -> bool {
        self.program.selects(variable, field)
    }
}

struct SingleVariable<'a> {
    variable: &'a str,
    value: &'a Value,
}

impl<'a> Vars<'a> for SingleVariable<'a> {
    fn get(&self, name: &str, _: &mut Budget) -> Result<Val<'a>, Error> {
        match name == self.variable {
            true => Ok(Val::json(self.value, None)),
            false => Err(Error::Fault(format!("no such attribute(s): {name}"))),
        }
    }
}

/// Expressions are equal if their texts are.
impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Expression {}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

/// An object type with these fields.
pub fn object(name: &str, fields: impl IntoIterator<Item = (&'static str, Type)>) -> Type {
    let field = |(name, ty): (&'static str, Type)| (name.to_owned(), cel::Field { json: name.into(), decl: ty.into() });
    let fields = fields.into_iter().map(field).collect();
    Type::Object(cel::Object { name: name.to_owned(), fields, open: false }.into())
}

pub fn texts() -> Type {
    Type::list(Type::String)
}

pub fn extra() -> Type {
    Type::map(Type::String, texts())
}
