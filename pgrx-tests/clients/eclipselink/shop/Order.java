package shop;

import javax.persistence.*;

@Entity
@Table(name = "orders")
public class Order {
    @Id
    @GeneratedValue(generator = "orders")
    public Long id;

    public String item;

    public Order() {}

    public Order(String item) {
        this.item = item;
    }
}
