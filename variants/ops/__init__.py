"""Operations that variants share."""
