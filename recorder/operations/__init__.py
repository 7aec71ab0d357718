"""Operations with arguments: what a loop can carry out, what rules ask of it, and the receipts."""
