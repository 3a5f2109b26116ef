//! The parser: one pass over the tokens, by precedence.

use super::lex::{self, Tokens};
use super::names::{NO_ESCAPED_IDENTS, is_message, reserved_error};
use super::token::{Kind as T, Token};
use super::{Call, DEPTH_LIMIT, Entry, Expr, Field, Kind, SIZE_LIMIT, diagnose, literal, operators};
use crate::source::{Found, on_large_stack};
use std::borrow::Cow;

/// Nesting that fits on the stack of any thread.
const SMALL: usize = 16;

/// Parses an expression. Errors are those of cel-go's parser.
pub(crate) fn parse(source: &str) -> Result<Expr<'_>, Vec<Found>> {
    let size = source.chars().count();
    if size > SIZE_LIMIT {
        let message = format!("expression code point size exceeds limit: size: {size}, limit {SIZE_LIMIT}");
        return Err(vec![(None, message)]);
    }
    let tokens = lex::tokens(source);
    if tokens.nesting <= SMALL {
        return parse_tokens(source, &tokens);
    }
    on_large_stack(|| parse_tokens(source, &tokens)).unwrap_or_else(|why| Err(vec![(None, why)]))
}

fn parse_tokens<'s>(source: &'s str, tokens: &Tokens) -> Result<Expr<'s>, Vec<Found>> {
    let mut parser = Parser::new(source, &tokens.all);
    let parsed = match tokens.skipped.is_empty() {
        true => parser.start(),
        false => Err(Stop::Syntax),
    };
    match parsed {
        Ok(e) if parser.issues.is_empty() => Ok(e),
        Ok(_) => Err(parser.issues),
        Err(stop) => {
            let issues = diagnose::diagnose(source, tokens);
            Err(match stop {
                Stop::Syntax | Stop::Depth if !issues.is_empty() => issues,
                Stop::Syntax => vec![(None, "Syntax error".into())],
                Stop::Depth => vec![(None, "max recursion depth exceeded".into())],
            })
        }
    }
}

/// Why there is no tree.
enum Stop {
    Syntax,
    Depth,
}

type Result2<T> = Result<T, Stop>;

/// Rules of the grammar under way that can be nested the deepest.
#[derive(Clone, Copy, Default)]
struct Depth {
    expr: usize,
    relation: usize,
    calc: usize,
}

struct Parser<'s, 't> {
    source: &'s str,
    tokens: &'t [Token],
    next: usize,
    depth: Depth,
    /// Errors that do not end the parse.
    issues: Vec<Found>,
    /// Calls under way in which no errors are reported.
    muted: usize,
}

/// Precedence of operators. What is read at a level binds at least as tightly.
const OR: u8 = 1;
const AND: u8 = 2;
const RELATION: u8 = 3;
const SUM: u8 = 4;
const PRODUCT: u8 = 5;

fn operator(kind: T) -> Option<(u8, &'static str)> {
    Some(match kind {
        T::Or => (OR, operators::LOGICAL_OR),
        T::And => (AND, operators::LOGICAL_AND),
        T::Equals => (RELATION, "_==_"),
        T::NotEquals => (RELATION, "_!=_"),
        T::In => (RELATION, "@in"),
        T::Less => (RELATION, "_<_"),
        T::LessEquals => (RELATION, "_<=_"),
        T::GreaterEquals => (RELATION, "_>=_"),
        T::Greater => (RELATION, "_>_"),
        T::Plus => (SUM, "_+_"),
        T::Minus => (SUM, "_-_"),
        T::Star => (PRODUCT, "_*_"),
        T::Slash => (PRODUCT, "_/_"),
        T::Percent => (PRODUCT, "_%_"),
        _ => return None,
    })
}

impl<'s, 't> Parser<'s, 't> {
    fn new(source: &'s str, tokens: &'t [Token]) -> Self {
        Self { source, tokens, next: 0, depth: Depth::default(), issues: Vec::new(), muted: 0 }
    }

    fn ahead(&self, n: usize) -> T {
        self.tokens.get(self.next + n).map_or(T::Eof, |t| t.kind)
    }

    fn take(&mut self) -> Token {
        let end = Token { kind: T::Eof, start: 0, end: 0, at: 0 };
        let token = self.tokens.get(self.next).copied().unwrap_or(end);
        self.next += 1;
        token
    }

    fn take_if(&mut self, kind: T) -> Option<Token> {
        (self.ahead(0) == kind).then(|| self.take())
    }

    fn expect(&mut self, kind: T) -> Result2<Token> {
        self.take_if(kind).ok_or(Stop::Syntax)
    }

    fn issue(&mut self, at: u32, message: impl Into<String>) {
        if self.muted == 0 {
            self.issues.push((Some(at), message.into()));
        }
    }

    fn bounded(e: Expr<'s>) -> Result2<Expr<'s>> {
        if e.is_too_deep() { Err(Stop::Depth) } else { Ok(e) }
    }

    fn start(&mut self) -> Result2<Expr<'s>> {
        let e = self.expr()?;
        self.expect(T::Eof)?;
        Ok(e)
    }

    fn expr(&mut self) -> Result2<Expr<'s>> {
        self.depth.expr += 1;
        if self.depth.expr > DEPTH_LIMIT {
            return Err(Stop::Depth);
        }
        let mut e = self.binary(OR)?;
        if let Some(question) = self.take_if(T::Question) {
            let then = self.binary(OR)?;
            self.expect(T::Colon)?;
            let otherwise = self.expr()?;
            e = Expr::call(question.at, operators::CONDITIONAL, vec![e, then, otherwise]).count();
        }
        self.depth.expr -= 1;
        Self::bounded(e)
    }

    /// Operands and operators of this level and tighter ones.
    fn binary(&mut self, level: u8) -> Result2<Expr<'s>> {
        let before = self.depth;
        let mut within = before;
        within.calc += 1;
        within.relation += usize::from(level <= SUM);
        if within.calc.max(within.relation) > DEPTH_LIMIT {
            return Err(Stop::Depth);
        }
        self.depth = within;
        let mut left = self.unary()?;
        while let Some((precedence, function)) = operator(self.ahead(0)).filter(|o| o.0 >= level) {
            // The rules for tighter operators have ended.
            self.depth = match precedence {
                OR | AND => before,
                RELATION => Depth { calc: before.calc, ..within },
                _ => within,
            };
            left = match precedence {
                OR | AND => self.logic(left, precedence, function)?,
                _ => {
                    let operator = self.take();
                    let right = self.binary(precedence + 1)?;
                    Self::bounded(Expr::call(operator.at, function, vec![left, right]).count())?
                }
            };
        }
        self.depth = before;
        Ok(left)
    }

    /// All terms that an operator joins: they become a balanced tree.
    fn logic(&mut self, first: Expr<'s>, precedence: u8, function: &'static str) -> Result2<Expr<'s>> {
        let (mut terms, mut places, kind) = (vec![first], Vec::new(), self.ahead(0));
        while let Some(operator) = self.take_if(kind) {
            places.push(operator.at);
            terms.push(self.binary(precedence + 1)?);
        }
        let mut terms = terms.into_iter();
        Self::bounded(balanced(function, &mut terms, &places).ok_or(Stop::Syntax)?)
    }

    fn unary(&mut self) -> Result2<Expr<'s>> {
        let kind = self.ahead(0);
        let is_sign = kind == T::Minus && matches!(self.ahead(1), T::Int | T::Float);
        if is_sign || !matches!(kind, T::Minus | T::Not) {
            return self.member();
        }
        let at = self.take().at;
        let mut count = 1;
        while self.take_if(kind).is_some() {
            count += 1;
        }
        let operand = self.member()?;
        if count % 2 == 0 {
            return Ok(operand);
        }
        let function = if kind == T::Not { operators::LOGICAL_NOT } else { operators::NEGATE };
        Self::bounded(Expr::call(at, function, vec![operand]))
    }

    fn member(&mut self) -> Result2<Expr<'s>> {
        let primary = self.primary()?;
        self.selectors(primary)
    }

    fn selectors(&mut self, mut e: Expr<'s>) -> Result2<Expr<'s>> {
        loop {
            e = match self.ahead(0) {
                T::Dot => self.select(e)?,
                T::LeftBracket => {
                    let bracket = self.take();
                    let optional = self.take_if(T::Question).is_some();
                    let index = self.expr()?;
                    self.expect(T::RightBracket)?;
                    let function = if optional { operators::OPT_INDEX } else { operators::INDEX };
                    Expr::call(bracket.at, function, vec![e, index])
                }
                _ => return Ok(e),
            };
            e = Self::bounded(e.count())?;
        }
    }

    fn select(&mut self, operand: Expr<'s>) -> Result2<Expr<'s>> {
        let dot = self.take();
        let optional = self.take_if(T::Question).is_some();
        let (field, name) = self.field_name()?;
        if optional {
            let name = Expr::new(field.at, Kind::Literal(crate::node::Const::Str(name.into())));
            return Ok(Expr::call(dot.at, operators::OPT_SELECT, vec![operand, name]));
        }
        match (field.kind, self.ahead(0)) {
            (T::Ident, T::LeftParen) => {
                let (at, args) = self.args()?;
                let call = Call { function: Cow::Borrowed(name), target: Some(operand), args };
                Ok(Expr::new(at, Kind::Call(Box::new(call))))
            }
            _ => Ok(Expr::new(dot.at, Kind::Select(Box::new(operand), name))),
        }
    }

    fn field_name(&mut self) -> Result2<(Token, &'s str)> {
        if !matches!(self.ahead(0), T::Ident | T::EscapedIdent) {
            return Err(Stop::Syntax);
        }
        let token = self.take();
        if token.kind == T::EscapedIdent {
            self.issue(token.at, NO_ESCAPED_IDENTS);
        }
        Ok((token, token.text(self.source)))
    }

    /// The position of the parenthesis, and what is in it.
    fn args(&mut self) -> Result2<(u32, Vec<Expr<'s>>)> {
        let at = self.expect(T::LeftParen)?.at;
        let mut args = Vec::new();
        if self.take_if(T::RightParen).is_some() {
            return Ok((at, args));
        }
        loop {
            args.push(self.expr()?);
            if self.take_if(T::Comma).is_none() {
                break;
            }
        }
        self.expect(T::RightParen)?;
        Ok((at, args))
    }

    fn primary(&mut self) -> Result2<Expr<'s>> {
        match self.ahead(0) {
            T::Ident | T::Dot => self.name(),
            T::LeftParen => {
                self.take();
                let e = self.expr()?;
                self.expect(T::RightParen)?;
                Ok(e)
            }
            T::LeftBracket => {
                let at = self.take().at;
                let items = self.list(T::RightBracket, |p| {
                    let optional = p.take_if(T::Question).is_some();
                    Ok((p.expr()?, optional))
                })?;
                Self::bounded(Expr::new(at, Kind::List(items)))
            }
            T::LeftBrace => {
                let at = self.take().at;
                let entries = self.list(T::RightBrace, |p| {
                    let optional = p.take_if(T::Question).is_some();
                    let key = p.expr()?;
                    p.expect(T::Colon)?;
                    Ok(Entry { key, value: p.expr()?, optional })
                })?;
                Self::bounded(Expr::new(at, Kind::Map(entries)))
            }
            _ => self.literal(),
        }
    }

    /// Items with commas between them, and maybe behind the last one.
    fn list<I>(&mut self, end: T, mut item: impl FnMut(&mut Self) -> Result2<I>) -> Result2<Vec<I>> {
        let mut items = Vec::new();
        if self.ahead(0) == T::Comma {
            self.take();
        } else if self.ahead(0) != end {
            items.push(item(self)?);
            while self.take_if(T::Comma).is_some() && self.ahead(0) != end {
                items.push(item(self)?);
            }
        }
        self.expect(end)?;
        Ok(items)
    }

    /// A variable, a call of a function or a message.
    fn name(&mut self) -> Result2<Expr<'s>> {
        let dot = self.take_if(T::Dot);
        let first = self.next;
        let ident = self.expect(T::Ident)?;
        let name = ident.text(self.source);
        let absolute = |name: Cow<'s, str>| if dot.is_some() { format!(".{name}").into() } else { name };
        let is_call = self.ahead(0) == T::LeftParen;
        if !is_call && is_message(self.tokens, first) {
            return self.message(first, absolute);
        }
        let error = reserved_error(name);
        let is_reserved = error.is_some();
        if let Some(message) = error {
            self.issue(dot.unwrap_or(ident).at, message);
        }
        if !is_call {
            return Ok(Expr::new(ident.at, Kind::Ident(absolute(name.into()))));
        }
        // cel-go does not look into a call that cannot be.
        self.muted += usize::from(is_reserved);
        let (at, args) = self.args()?;
        self.muted -= usize::from(is_reserved);
        Self::bounded(Expr::call(at, absolute(name.into()), args))
    }

    fn message(&mut self, first: usize, absolute: impl Fn(Cow<'s, str>) -> Cow<'s, str>) -> Result2<Expr<'s>> {
        let name = match self.ahead(0) {
            T::LeftBrace => Cow::Borrowed(self.tokens[first].text(self.source)),
            _ => {
                let end = first + self.tokens[first..].iter().position(|t| t.kind == T::LeftBrace).unwrap_or(0);
                self.next = end;
                self.tokens[first..end].iter().map(|t| t.text(self.source)).collect::<String>().into()
            }
        };
        let at = self.expect(T::LeftBrace)?.at;
        let fields = self.list(T::RightBrace, |p| {
            let optional = p.take_if(T::Question).is_some();
            let (_, name) = p.field_name()?;
            let at = p.expect(T::Colon)?.at;
            Ok(Field { at, name, value: p.expr()?, optional })
        })?;
        Self::bounded(Expr::new(at, Kind::Struct(absolute(name), fields)))
    }

    fn literal(&mut self) -> Result2<Expr<'s>> {
        let minus = self.take_if(T::Minus);
        let kinds: &[T] = match minus {
            Some(_) => &[T::Int, T::Float],
            None => &[T::Int, T::Uint, T::Float, T::String, T::Bytes, T::True, T::False, T::Null],
        };
        if !kinds.contains(&self.ahead(0)) {
            return Err(Stop::Syntax);
        }
        let token = self.take();
        let at = minus.unwrap_or(token).at;
        let value = literal::value(token.kind, token.text(self.source), minus.is_some()).unwrap_or_else(|message| {
            self.issue(at, message);
            crate::node::Const::Null
        });
        Ok(Expr::new(at, Kind::Literal(value)))
    }
}

/// Terms and operators as a tree, the operator in the middle as its root.
fn balanced<'s>(
    function: &'static str,
    terms: &mut impl Iterator<Item = Expr<'s>>,
    places: &[u32],
) -> Option<Expr<'s>> {
    if places.is_empty() {
        return terms.next();
    }
    let middle = places.len() / 2;
    let left = balanced(function, terms, &places[..middle])?;
    let right = balanced(function, terms, &places[middle + 1..])?;
    Some(Expr::call(places[middle], function, vec![left, right]))
}
